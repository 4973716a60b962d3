package nft

import "testing"

func TestLost(t *testing.T) {
	const rule = "ip saddr 10.0.0.1 counter accept\n"
	for _, test := range []struct {
		name, was, now string // rules of the chain
		want           int
	}{
		{name: "the same, counted on", was: "counter packets 1 bytes 2 accept\n" + rule, now: "counter packets 9 bytes 9 accept\n" + rule},
		{name: "more, in another order", was: rule + "drop\n", now: "drop\nip saddr 10.0.0.2 drop\n" + rule},
		{name: "one is gone", was: rule + "drop\n", now: "drop\n", want: 1},
		{name: "one of two alike", was: rule + rule, now: rule, want: 1},
		{name: "all", was: rule + rule, want: 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			namespace(t)
			conn := dial(t)
			var tables []Table
			for _, rules := range []string{test.was, test.now} {
				program(t, "flush ruleset\ntable ip a {\nchain c {\n"+rules+"}\n}\n", "nft", "-f", "-")
				saved, err := conn.Save()
				if err != nil {
					t.Fatal(err)
				}
				tables = append(tables, saved.Tables...)
			}
			if got, err := tables[0].Lost(tables[1]); err != nil || got != test.want {
				t.Errorf("Lost = %d, %v, want %d", got, err, test.want)
			}
		})
	}
}
