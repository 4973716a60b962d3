package jsonkey

import "testing"

func TestSet(t *testing.T) {
	for _, test := range []struct {
		name, data, want string
		fail             bool
	}{
		{name: "empty object", data: "{}", want: "{\n  \"iptables\": false\n}"},
		{name: "empty object with blanks", data: "{ \n}\n", want: "{\n  \"iptables\": false\n \n}\n"},
		{name: "other keys", data: "{\n\t\"debug\": true\n}\n", want: "{\n  \"iptables\": false,\n\t\"debug\": true\n}\n"},
		{name: "there, true", data: `{"a":1,"iptables" : true ,"b":{"iptables":7}}`, want: `{"a":1,"iptables" : false ,"b":{"iptables":7}}`},
		{name: "there, false", data: `{"iptables":false}`, want: `{"iptables":false}`},
		{name: "twice", data: `{"iptables":1,"iptables":2}`, want: `{"iptables":1,"iptables":false}`},
		{name: "nothing", data: "", fail: true},
		{name: "a list", data: "[]", fail: true},
		{name: "cut", data: `{"a": [1,`, fail: true},
		{name: "more behind it", data: `{} {}`, fail: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, had, err := Get([]byte(test.data), "iptables")
			if (err != nil) != test.fail {
				t.Fatalf("Get: %v, want failure %v", err, test.fail)
			}
			got, err := Set([]byte(test.data), "iptables", "false")
			if string(got) != test.want || (err != nil) != test.fail {
				t.Fatalf("Set = %q, %v, want %q, failure %v", got, err, test.want, test.fail)
			}
			if test.fail {
				return
			}
			if value, found, err := Get(got, "iptables"); value != "false" || !found || err != nil {
				t.Errorf("then Get = %q, %v, %v", value, found, err)
			}
			back, found, err := Unset(got, "iptables", "false")
			if err != nil || found == had || (found && string(back) != test.data) {
				t.Errorf("Unset = %q, %v, %v, want %q", back, found, err, test.data)
			}
		})
	}
}
