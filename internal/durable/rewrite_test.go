package durable

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRewrite(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(path, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 7, 8); err != nil {
			t.Fatal(err)
		}
	}
	hasAttributes := unix.Lsetxattr(path, "user.note", []byte("kept"), 0) == nil
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	was, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, ".file"+tempMark+"0123")
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	changed, err := Rewrite(link, []byte("new"))
	if err != nil || !changed {
		t.Fatalf("Rewrite = %v, %v, want true", changed, err)
	}
	if target, err := os.Readlink(link); err != nil || target != "file" {
		t.Errorf("the link is %q, %v, want it kept", target, err)
	}
	if _, err := os.Lstat(left); !os.IsNotExist(err) {
		t.Errorf("what a killed writer left is still there, %v", err)
	}
	data, err := os.ReadFile(path)
	if err != nil || string(data) != "new" {
		t.Errorf("content = %q, %v", data, err)
	}
	is, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if is.Mode() != was.Mode() || ownerOf(is) != ownerOf(was) {
		t.Errorf("mode, owner = %v, %v, want %v, %v", is.Mode(), ownerOf(is), was.Mode(), ownerOf(was))
	}
	if attributes, err := Xattrs(path); hasAttributes && (err != nil || string(attributes["user.note"]) != "kept") {
		t.Errorf("attributes = %q, %v", attributes, err)
	}
	if changed, err := Rewrite(path, []byte("new")); changed || err != nil {
		t.Errorf("again: Rewrite = %v, %v, want false", changed, err)
	}
	if again, err := os.Stat(path); err != nil || !os.SameFile(again, is) {
		t.Errorf("again: another file, %v", err)
	}
	if _, err := Rewrite(filepath.Join(dir, "absent"), nil); !os.IsNotExist(err) {
		t.Errorf("absent: err = %v, want not exist", err)
	}
}

type owner struct{ uid, gid uint32 }

func ownerOf(info os.FileInfo) owner {
	stat := info.Sys().(*syscall.Stat_t)
	return owner{stat.Uid, stat.Gid}
}
