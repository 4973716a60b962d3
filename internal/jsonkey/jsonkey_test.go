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
			if err != nil || !found || (!had && string(back) != test.data) {
				t.Errorf("Unset = %q, %v, %v, want %q", back, found, err, test.data)
			}
		})
	}
}

// Somebody wrote the file anew after Set.
func TestUnsetElsewhere(t *testing.T) {
	for _, test := range []struct {
		name, data, want string
		absent           bool
	}{
		{name: "alone", data: `{"iptables":false}`, want: `{}`},
		{name: "alone, with another value", data: `{ "iptables": true }`, want: `{ }`},
		{name: "first", data: "{\n    \"iptables\": false,\n    \"a\": 1\n}", want: "{\n    \"a\": 1\n}"},
		{name: "middle", data: `{"a":[1,{"iptables":2}],"iptables" : false , "b":2}`, want: `{"a":[1,{"iptables":2}],"b":2}`},
		{name: "last", data: "{\n    \"a\": \"iptables\",\n    \"iptables\": false\n}\n", want: "{\n    \"a\": \"iptables\"\n}\n"},
		{name: "absent", data: `{"a":{"iptables":false}}`, want: `{"a":{"iptables":false}}`, absent: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, found, err := Unset([]byte(test.data), "iptables", "false")
			if err != nil || found == test.absent || string(got) != test.want {
				t.Errorf("Unset = %q, %v, %v, want %q", got, found, err, test.want)
			}
		})
	}
}
