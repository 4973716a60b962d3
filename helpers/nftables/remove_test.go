package main

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"unbounded/internal/before"
	"unbounded/internal/nft"
	"unbounded/internal/stage"
)

// realTable is table of family inet as the kernel dumps one.
func realTable(t *testing.T, name string) nft.Table {
	t.Helper()
	text := append([]byte(name), 0)
	for len(text)%4 != 0 {
		text = append(text, 0)
	}
	body := []byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}
	body = binary.NativeEndian.AppendUint16(body, uint16(4+len(name)+1))
	body = binary.NativeEndian.AppendUint16(body, unix.NFTA_TABLE_NAME)
	body = append(body, text...)
	data := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(body)))
	data = binary.NativeEndian.AppendUint16(data, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE)
	data = append(append(data, make([]byte, unix.NLMSG_HDRLEN-len(data))...), body...)
	var made nft.Table
	if err := made.UnmarshalBinary(data); err != nil {
		t.Fatal(err)
	}
	return made
}

func (f *fakeFilter) Close() error { return nil }

func (f *fakeFilter) Restore(tables []nft.Table) error {
	for _, table := range tables {
		if err := f.refuses[table.Name]; err != nil {
			return err
		}
		f.tables = append(f.tables, table)
	}
	return nil
}

func (f *fakeFilter) names() []string {
	names := []string{}
	for _, table := range f.tables {
		names = append(names, table.Name)
	}
	return names
}

func reboot(t *testing.T, env *stage.Env, filter *fakeFilter) {
	t.Helper()
	write(t, env.Root, "/proc/sys/kernel/random/boot_id", "boot-2\n")
	filter.tables = nil
}

// pend lets the next stage have a firewall to start; done is that it has.
func pend(t *testing.T, env *stage.Env) {
	t.Helper()
	image, err := before.Load(env.Root, conflicts)
	if err != nil {
		t.Fatal(err)
	}
	image.Note(before.Change{Kind: before.Unit, Object: "nftables.service", Now: before.Text("active"), Want: before.Text("inactive")})
	if err := image.Save(); err != nil {
		t.Fatal(err)
	}
}

func done(t *testing.T, env *stage.Env) {
	t.Helper()
	image, err := before.Load(env.Root, conflicts)
	if err != nil {
		t.Fatal(err)
	}
	if err := image.Discard(); err != nil {
		t.Fatal(err)
	}
}

func TestRestore(t *testing.T) {
	refused := errors.New("no such device")
	for _, test := range []struct {
		name    string
		between func(t *testing.T, env *stage.Env, filter *fakeFilter)
		want    []string // the tables in the end; a and b were there before
		says    string
		fails   string
	}{
		{name: "same boot", want: []string{"a", "b"}},
		{
			name: "one is there again",
			between: func(t *testing.T, _ *stage.Env, filter *fakeFilter) {
				t.Helper()
				filter.tables = []nft.Table{realTable(t, "b"), realTable(t, "c")}
			},
			want: []string{"b", "c", "a"}, says: "table inet b is there again",
		},
		{
			name: "another boot",
			between: func(t *testing.T, env *stage.Env, filter *fakeFilter) {
				t.Helper()
				reboot(t, env, filter)
				filter.tables = []nft.Table{realTable(t, "c")}
			},
			want: []string{"c"}, says: "the host's own services load theirs",
		},
		{
			name: "killed before the flush",
			between: func(t *testing.T, _ *stage.Env, filter *fakeFilter) {
				t.Helper()
				filter.tables = []nft.Table{realTable(t, "a"), realTable(t, "b")}
			},
			want: []string{"a", "b"},
		},
		{
			name: "killed with one restored",
			between: func(t *testing.T, env *stage.Env, filter *fakeFilter) {
				t.Helper()
				filter.refuses = map[string]error{"b": refused}
				err := restore(env, func() (restorer, error) { return filter, nil })
				if err == nil {
					t.Error("a table that the kernel refuses is no error")
				}
				filter.refuses = nil
			},
			want: []string{"a", "b"},
		},
		{
			name: "somebody makes it at that moment",
			between: func(_ *testing.T, _ *stage.Env, filter *fakeFilter) {
				filter.refuses = map[string]error{"b": syscall.EEXIST}
			},
			want: []string{"a"}, says: "table inet b is there again",
		},
		{
			name: "the kernel refuses one for good",
			between: func(_ *testing.T, _ *stage.Env, filter *fakeFilter) {
				filter.refuses = map[string]error{"b": refused}
			},
			fails: "table inet b: no such device; remove the cause",
		},
		{
			name: "installed again after half a reset, and table a made anew meanwhile",
			between: func(t *testing.T, env *stage.Env, filter *fakeFilter) {
				t.Helper()
				filter.tables = []nft.Table{realTable(t, "a"), realTable(t, "b"), realTable(t, "c")}
				if err := clean(env, filter); err != nil {
					t.Fatal(err)
				}
			},
			want: []string{"a", "b", "c"},
		},
		{
			name: "a boot later somebody's table was flushed too",
			between: func(t *testing.T, env *stage.Env, filter *fakeFilter) {
				t.Helper()
				reboot(t, env, filter)
				filter.tables = []nft.Table{realTable(t, "a"), realTable(t, "c")}
				if err := clean(env, filter); err != nil {
					t.Fatal(err)
				}
			},
			want: []string{"a", "c"},
		},
		{
			name: "firewalls that flush are started",
			between: func(t *testing.T, env *stage.Env, filter *fakeFilter) {
				t.Helper()
				reboot(t, env, filter)
				filter.tables = []nft.Table{realTable(t, "c")}
				pend(t, env)
				for range 2 { // killed in between, and begun again
					if err := restore(env, func() (restorer, error) { return filter, nil }); err != nil {
						t.Fatal(err)
					}
					filter.tables = []nft.Table{realTable(t, "a")} // the firewall's
				}
				done(t, env)
			},
			want: []string{"a", "c"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			env, log := host(t)
			filter := &fakeFilter{tables: []nft.Table{realTable(t, "a"), realTable(t, "b")}}
			if err := clean(env, filter); err != nil {
				t.Fatal(err)
			}
			if test.between != nil {
				test.between(t, env, filter)
			}
			run := func() error { return restore(env, func() (restorer, error) { return filter, nil }) }
			if err := run(); test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) || len(saved(t, env)) == 0 {
					t.Errorf("restore = %v, want %q and the image kept", err, test.fails)
				}
				return
			} else if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, filter.names()); diff != "" {
				t.Errorf("tables (-want +got):\n%s", diff)
			}
			if !strings.Contains(log.String(), test.says) {
				t.Errorf("log has no %q:\n%s", test.says, log)
			}
			images, err := filepath.Glob(filepath.Join(env.Root, "var/lib/unbounded/agent/before/*"))
			if err != nil || len(images) > 0 {
				t.Errorf("images left: %v, %v", images, err)
			}
			log.Reset()
			if err := run(); err != nil || log.Len() > 0 || !cmp.Equal(filter.names(), test.want) {
				t.Errorf("again: %v, tables %v, log %q", err, filter.names(), log)
			}
		})
	}
}

// A kernel without nftables has nothing to lose, and nothing to be asked.
func TestRestoreWithoutNftables(t *testing.T) {
	env, _ := host(t)
	none := func() (restorer, error) { return nil, nft.ErrUnsupported }
	if err := restore(env, none); err != nil {
		t.Errorf("nothing noted: %v", err)
	}
	pend(t, env)
	if err := restore(env, none); err != nil {
		t.Errorf("a firewall is to be started: %v", err)
	}
	if err := clean(env, &fakeFilter{tables: []nft.Table{realTable(t, "a")}}); err != nil {
		t.Fatal(err)
	}
	if err := restore(env, none); err == nil || len(saved(t, env)) == 0 {
		t.Errorf("tables are to be restored: %v, image %v; want an error and the image kept", err, saved(t, env))
	}
}

func TestRestoreRefusesADamagedImage(t *testing.T) {
	env, _ := host(t)
	image, err := before.Load(env.Root, concern)
	if err != nil {
		t.Fatal(err)
	}
	image.Note(before.Change{Kind: before.Ruleset, Object: "inet a", Now: before.State{Bytes: []byte("rubbish")}, Want: before.Gone()})
	if err := image.Save(); err != nil {
		t.Fatal(err)
	}
	if err := restore(env, func() (restorer, error) { return &fakeFilter{}, nil }); err == nil || !strings.Contains(err.Error(), image.Path()) {
		t.Errorf("restore = %v, want an error that names the file", err)
	}
	if _, err := os.Stat(image.Path()); err != nil {
		t.Error(err)
	}
}
