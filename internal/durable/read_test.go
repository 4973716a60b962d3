package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.WriteFile(at("file"), []byte("0123456789"), 0o600),
		os.Mkdir(at("folder"), 0o700),
		os.Symlink(at("file"), at("link")),
		os.Symlink(at("circle"), at("circle")),
		syscall.Mkfifo(at("pipe"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name, want string
		err        error
	}{
		{name: "file", want: "0123"},
		{name: "link", want: "0123"},
		{name: "absent", err: fs.ErrNotExist},
		{name: "folder", err: ErrNotFile},
		{name: "circle", err: ErrNotFile},
		{name: "pipe", err: ErrNotFile},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := Read(at(tt.name), 4)
			if string(got) != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("Read(%s) = %q, %v, want %q, %v", tt.name, got, err, tt.want, tt.err)
			}
		})
	}
}

func TestMark(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state", "mark")
	for _, want := range []bool{true, false} {
		if changed, err := Mark(path); changed != want || err != nil {
			t.Errorf("Mark() = %t, %v, want %t", changed, err, want)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 || info.Size() != 0 {
		t.Errorf("%v, %v, want an empty file with mode 0600", info, err)
	}
	if err := os.WriteFile(path, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := Mark(path); !changed || err != nil {
		t.Errorf("Mark() over another file = %t, %v, want true", changed, err)
	}
}
