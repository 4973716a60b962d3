package compare

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// reader makes objects of a section's text.
type reader func(text string) (map[string]string, error)

// readers are those of the sections of collect.sh.
func readers() map[string]reader {
	return map[string]reader{
		"unit-files":            unitFiles,
		"units":                 units,
		"jobs":                  lines,
		"sysctls":               sysctls,
		"nft":                   nft,
		"iptables-nft-save":     saved,
		"ip6tables-nft-save":    saved,
		"iptables-legacy-save":  saved,
		"ip6tables-legacy-save": saved,
		"legacy-tables":         lines,
		"links":                 named("ifname", volatileLink),
		"addresses":             named("ifname", volatileLink),
		"rules4":                listed(nil),
		"rules6":                listed(nil),
		"routes4":               listed(nil),
		"routes6":               listed(volatileRoute),
		"mounts":                mounts,
		"swap":                  lines,
		"machine-ids":           pairs,
		"processes":             lines,
	}
}

// count adds an object; of several alike, each has its number.
func count(objects map[string]string, key, value string) {
	name := key
	for i := 2; ; i++ {
		if _, there := objects[name]; !there {
			objects[name] = value
			return
		}
		name = fmt.Sprintf("%s #%d", key, i)
	}
}

// lines has an object for each line.
func lines(text string) (map[string]string, error) {
	objects := map[string]string{}
	for line := range strings.Lines(text) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			count(objects, line, "there")
		}
	}
	return objects, nil
}

// pairs has an object for each line, named by its first word.
func pairs(text string) (map[string]string, error) {
	objects := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		objects[name] = value
	}
	return objects, nil
}

// unitFiles has the enablement of each unit file, masked ones among them.
func unitFiles(text string) (map[string]string, error) {
	objects := map[string]string{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			return nil, fmt.Errorf("no unit file: %q", line)
		}
		objects[fields[0]] = fields[1]
	}
	if len(objects) == 0 {
		return nil, errors.New("there are none")
	}
	return objects, nil
}

// units has the state of each unit that is not inactive: one that is, systemd forgets and loads as it likes.
func units(text string) (map[string]string, error) {
	objects := map[string]string{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			return nil, fmt.Errorf("no unit: %q", line)
		}
		if load, active := fields[1], fields[2]; active != "inactive" {
			objects[fields[0]] = load + " " + active
		}
	}
	if len(objects) == 0 {
		return nil, errors.New("there are none")
	}
	return objects, nil
}

// sysctls has the lines of each kernel parameter.
func sysctls(text string) (map[string]string, error) {
	objects := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, found := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		if !found {
			return nil, fmt.Errorf("no parameter: %q", line)
		}
		name = strings.TrimPrefix(name, "/proc/sys/")
		objects[name] = strings.TrimPrefix(objects[name]+"; "+value, "; ")
	}
	if len(objects) == 0 {
		return nil, errors.New("there are none")
	}
	return objects, nil
}

// nft has an object for each table, chain, set and rule of the ruleset; rules keep their order in their chain.
func nft(text string) (map[string]string, error) {
	var ruleset struct {
		Objects []map[string]map[string]any `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(text), &ruleset); err != nil {
		return nil, err
	}
	objects := map[string]string{}
	for _, object := range ruleset.Objects {
		for kind, value := range object {
			if kind == "metainfo" {
				continue
			}
			key := kind
			for _, part := range []string{"family", "table", "chain", "name"} {
				if value[part] != nil {
					key += fmt.Sprint(" ", value[part])
				}
			}
			encoded, err := json.Marshal(without(value, volatileRule))
			if err != nil {
				return nil, err
			}
			count(objects, key, string(encoded))
		}
	}
	return objects, nil
}

// saved has the lines of iptables-save, of each table in order, without counters.
func saved(text string) (map[string]string, error) {
	counters := regexp.MustCompile(`\[\d+:\d+\]`)
	objects := map[string]string{}
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(counters.ReplaceAllString(line, ""))
		switch {
		case line == "" || line == "COMMIT" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "*"):
			table = line
			objects[table] = "there"
		case strings.HasPrefix(line, "-A "):
			chain := strings.Fields(line)[1]
			count(objects, table+" rule "+chain, line)
		default:
			count(objects, table+" "+line, "there")
		}
	}
	return objects, nil
}

// What is not the object's own: numbers that the kernel gives, times and counts.
var (
	volatileRule  = []string{"handle", "packets", "bytes", "expires"}
	volatileLink  = []string{"ifindex", "link_index", "valid_life_time", "preferred_life_time", "dadfailed", "tentative", "hello_timer", "tcn_timer", "topology_change_timer", "gc_timer"}
	volatileRoute = []string{"expires"}
)

// named has the objects of a JSON array, by one of their keys.
func named(name string, volatile []string) reader {
	return func(text string) (map[string]string, error) {
		objects := map[string]string{}
		err := each(text, volatile, func(object map[string]any, encoded string) {
			count(objects, fmt.Sprint(object[name]), encoded)
		})
		if err == nil && len(objects) == 0 {
			err = errors.New("there are none")
		}
		return objects, err
	}
}

// listed has the objects of a JSON array, by all that they are.
func listed(volatile []string) reader {
	return func(text string) (map[string]string, error) {
		objects := map[string]string{}
		err := each(text, volatile, func(_ map[string]any, encoded string) { count(objects, encoded, "there") })
		return objects, err
	}
}

func each(text string, volatile []string, add func(object map[string]any, encoded string)) error {
	if strings.TrimSpace(text) == "" {
		return nil // as ip says that there is nothing
	}
	var all []map[string]any
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return err
	}
	for _, object := range all {
		if len(object) == 0 {
			continue // ip fills in for what it does not show
		}
		encoded, err := json.Marshal(without(object, volatile))
		if err != nil {
			return err
		}
		add(object, string(encoded))
	}
	return nil
}

// without is a JSON value without some keys, at any depth.
func without(value any, keys []string) any {
	switch v := value.(type) {
	case map[string]any:
		for _, key := range keys {
			delete(v, key)
		}
		for key := range v {
			v[key] = without(v[key], keys)
		}
	case []any:
		for i := range v {
			v[i] = without(v[i], keys)
		}
	}
	return value
}

// mounts has the mounts by their place, without numbers; of several in one place the last is the uppermost.
func mounts(text string) (map[string]string, error) {
	number := regexp.MustCompile(`(shared|master|propagate_from):\d+`)
	// Files that nspawn bound and removed have a name of chance.
	chance := regexp.MustCompile(`/\.#[\w-]+//deleted`)
	pipe := regexp.MustCompile(`\b(fd|pgrp|pipe_ino)=\d+`)
	objects := map[string]string{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 10 {
			return nil, fmt.Errorf("no mount: %q", line)
		}
		rest := strings.Join(append([]string{fields[3]}, fields[5:]...), " ")
		count(objects, fields[4], pipe.ReplaceAllString(chance.ReplaceAllString(number.ReplaceAllString(rest, "$1"), "deleted"), "$1"))
	}
	if len(objects) == 0 {
		return nil, errors.New("there are none")
	}
	return objects, nil
}
