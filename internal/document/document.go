// Package document compares a JSON document with the Go type it is meant for.
//
// encoding/json reports one mismatch and skips keys that it does not know without a
// word. Compare walks the whole document and names all of both, each with its path
// as the user wrote it, and never a value. Keys are matched as encoding/json does:
// without regard to case; of a repeated key every occurrence is looked at.
package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Mismatch is a value of the wrong kind.
type Mismatch struct {
	Path string // Kubelet.Labels["zone"]
	Want string // "a string"
	Have string // "a number"
}

// Compare walks data, which is valid JSON, along the type of shape, a pointer to a struct.
// It returns the keys without a field and the values that fit none, both in the order
// of the document. Fields of type any and json.RawMessage take what there is.
func Compare(data []byte, shape any) (unknown []string, mismatches []Mismatch, err error) {
	w := &walker{decoder: json.NewDecoder(bytes.NewReader(data))}
	w.decoder.UseNumber()
	if err := w.value("", reflect.TypeOf(shape).Elem()); err != nil {
		return nil, nil, fmt.Errorf("walk document: %w", err)
	}
	return w.unknown, w.mismatches, nil
}

type walker struct {
	decoder    *json.Decoder
	unknown    []string
	mismatches []Mismatch
}

func (w *walker) value(path string, want reflect.Type) error {
	for want.Kind() == reflect.Pointer {
		want = want.Elem()
	}
	if want.Kind() == reflect.Interface || want == reflect.TypeFor[json.RawMessage]() {
		return w.skip()
	}
	token, err := w.decoder.Token()
	if err != nil {
		return err
	}
	if token == nil { // null leaves any field as it is
		return nil
	}
	have, fits := kindOf(token), wanted(want)
	if have != fits {
		w.mismatches = append(w.mismatches, Mismatch{Path: path, Want: fits, Have: have})
		return w.rest(token)
	}
	switch token {
	case json.Delim('{'):
		return w.object(path, want)
	case json.Delim('['):
		return w.array(path, want.Elem())
	}
	return nil
}

func (w *walker) object(path string, want reflect.Type) error {
	for w.decoder.More() {
		token, err := w.decoder.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string)
		if want.Kind() == reflect.Map {
			if err := w.value(Key(path, key), want.Elem()); err != nil {
				return err
			}
			continue
		}
		field, ok := fieldOf(want, key)
		if !ok {
			w.unknown = append(w.unknown, Member(path, key))
			if err := w.skip(); err != nil {
				return err
			}
			continue
		}
		if err := w.value(Member(path, nameOf(field)), field.Type); err != nil {
			return err
		}
	}
	_, err := w.decoder.Token()
	return err
}

func (w *walker) array(path string, want reflect.Type) error {
	for i := 0; w.decoder.More(); i++ {
		if err := w.value(Index(path, i), want); err != nil {
			return err
		}
	}
	_, err := w.decoder.Token()
	return err
}

func (w *walker) skip() error {
	var value json.RawMessage
	return w.decoder.Decode(&value)
}

// rest reads on to the end of the object or array that token opened.
func (w *walker) rest(token json.Token) error {
	depth := 0
	for {
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
		var err error
		if token, err = w.decoder.Token(); err != nil {
			return err
		}
	}
}

func fieldOf(want reflect.Type, key string) (reflect.StructField, bool) {
	return want.FieldByNameFunc(func(name string) bool {
		field, _ := want.FieldByName(name)
		return strings.EqualFold(nameOf(field), key)
	})
}

func nameOf(field reflect.StructField) string {
	if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
		return name
	}
	return field.Name
}

const (
	text    = "a string"
	number  = "a number"
	boolean = "true or false"
	object  = "an object"
	array   = "a list"
)

func kindOf(token json.Token) string {
	switch t := token.(type) {
	case string:
		return text
	case json.Number:
		return number
	case bool:
		return boolean
	case json.Delim:
		if t == '[' {
			return array
		}
	}
	return object
}

func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return text
	case reflect.Bool:
		return boolean
	case reflect.Slice:
		return array
	case reflect.Struct, reflect.Map:
		return object
	default:
		return number
	}
}

// Member is the path of a member of an object with fixed names. A name that is not
// plain is quoted, so that no document can break a line of ours.
func Member(path, name string) string {
	if strings.ContainsFunc(name, func(r rune) bool {
		return r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) || name == "" {
		return Key(path, name)
	}
	if path == "" {
		return Short(name)
	}
	return path + "." + Short(name)
}

// Key is the path of an entry of a map.
func Key(path, key string) string { return path + "[" + strconv.Quote(Short(key)) + "]" }

// Index is the path of an entry of a list.
func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// Short is s, cut to what fits into a message.
func Short(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
