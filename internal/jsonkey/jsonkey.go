// Package jsonkey reads and sets one key of a JSON object in a file that belongs to somebody else: every
// other byte stays as it is.
package jsonkey

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Get is the JSON text of key's value; found is false when the object has no such key.
func Get(data []byte, key string) (value string, found bool, err error) {
	at, err := locate(data, key)
	if err != nil || at.end == 0 {
		return "", false, err
	}
	return string(data[at.start:at.end]), true, nil
}

// Set gives key the value, which is JSON text. A new key becomes the first.
func Set(data []byte, key, value string) ([]byte, error) {
	at, err := locate(data, key)
	if err != nil {
		return nil, err
	}
	if at.end != 0 {
		return slices.Concat(data[:at.start], []byte(value), data[at.end:]), nil
	}
	return slices.Concat(data[:at.open], at.inserted(key, value), data[at.open:]), nil
}

// Unset removes key, whatever its value, and says whether it was there. If it is as Set inserted it with
// value, exactly that is taken out; somebody may have written the file anew since: then the last such key goes, with one comma.
func Unset(data []byte, key, value string) (changed []byte, found bool, err error) {
	at, err := locate(data, key)
	if err != nil {
		return nil, false, err
	}
	rest := data[at.open:]
	for _, empty := range []bool{false, true} {
		at.empty = empty
		if after, ok := bytes.CutPrefix(rest, at.inserted(key, value)); ok {
			return slices.Concat(data[:at.open], after), true, nil
		}
	}
	if at.end == 0 {
		return data, false, nil
	}
	before, behind := data[:at.key], data[at.end:]
	if after, ok := bytes.CutPrefix(bytes.TrimLeft(behind, blanks), []byte(",")); ok {
		return slices.Concat(before, bytes.TrimLeft(after, blanks)), true, nil
	}
	before = bytes.TrimSuffix(bytes.TrimRight(before, blanks), []byte(","))
	return slices.Concat(before, behind), true, nil
}

const blanks = " \t\r\n"

// place is where things are in the text of an object.
type place struct {
	open       int  // behind its brace
	empty      bool // it has no key
	key        int  // where the last such key begins
	start, end int  // of the key's last value; 0, 0 without one
}

func (p place) inserted(key, value string) []byte {
	if p.empty {
		return fmt.Appendf(nil, "\n  %q: %s\n", key, value)
	}
	return fmt.Appendf(nil, "\n  %q: %s,", key, value)
}

func locate(data []byte, key string) (place, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return place{}, errors.Join(errors.New("not a JSON object"), err)
	}
	at := place{open: int(decoder.InputOffset()), empty: true}
	for decoder.More() {
		at.empty = false
		from := int(decoder.InputOffset()) // before blanks and a comma
		name, err := decoder.Token()
		if err != nil {
			return place{}, err
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return place{}, err
		}
		if name == key {
			at.end = int(decoder.InputOffset())
			at.start = at.end - len(value)
			at.key = from + bytes.IndexByte(data[from:], '"')
		}
	}
	if _, err := decoder.Token(); err != nil {
		return place{}, err
	}
	if rest := bytes.TrimSpace(data[decoder.InputOffset():]); len(rest) > 0 {
		return place{}, errors.New("something follows the JSON object")
	}
	return at, nil
}
