package overlay

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"unbounded/internal/paths"
)

// Legacy are the tables of the older packet filter of the host below root, whose rules act beside nftables'. Nothing
// here can look into them. A table is listed from its first use on, with rules or without.
func Legacy(root string) ([]string, error) {
	var tables []string
	for _, family := range []struct{ file, program string }{
		{"/proc/net/ip_tables_names", "iptables-legacy"},
		{"/proc/net/ip6_tables_names", "ip6tables-legacy"},
	} {
		data, err := os.ReadFile(paths.At(root, family.file))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, table := range strings.Fields(string(data)) {
			tables = append(tables, family.program+" table "+table)
		}
	}
	return tables, nil
}
