package unpack

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/apex/log"
	"golang.org/x/sys/unix"
)

// childName is what the child is called, also in ps; Child knows itself by it.
const childName = "unbounded-unpack"

// The files of a child beside its standard ones: the root of the tree, then the layers in order.
const (
	rootFD   = 3
	layersFD = 4
)

// message is one line from the child to its parent.
type message struct {
	Log     string `json:",omitempty"` // a warning
	Layer   int    `json:",omitempty"` // the layer that is being unpacked now, from 1
	Error   string `json:",omitempty"` // why the child gives up
	Kind    kind   `json:",omitempty"`
	Entries int64  `json:",omitempty"` // at the end: what the tree got
}

// kind is what kind of failure it is.
type kind string

const (
	corrupt kind = "corrupt" // the blob is not what its digest says
	refused kind = "refused" // nothing but another image can help
	full    kind = "full"    // no space left
)

// Child unpacks and ends the process, if this process was started for that by Tree;
// otherwise it returns at once. It is the first thing that a main which uses Tree calls:
// the child must be of the same program, and neither be a stage nor take its locks.
func Child() {
	if os.Args[0] != childName {
		return
	}
	out := json.NewEncoder(os.Stdout)
	say := func(m message) {
		m.Log, m.Error = oneLine(m.Log), oneLine(m.Error)
		if out.Encode(m) != nil {
			os.Exit(1) // the parent is gone
		}
	}
	entries, err := child(say)
	if err != nil {
		m := message{Error: err.Error()}
		if f, ok := errors.AsType[*failure](err); ok {
			m.Kind, m.Layer = f.kind, f.layer
		}
		say(m)
		os.Exit(1)
	}
	say(message{Entries: entries})
	os.Exit(0)
}

// oneLine is text fit for a line: the names in it are the archive's, of any length and with any character.
func oneLine(text string) string {
	const limit = 2000
	if len(text) > limit {
		text = text[:limit/2] + " … " + text[len(text)-limit/2:]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
}

// child locks itself into the tree and unpacks the layers that standard input names.
func child(say func(message)) (int64, error) {
	var job job
	if err := json.NewDecoder(os.Stdin).Decode(&job); err != nil {
		return 0, fmt.Errorf("read the job: %w", err)
	}
	time.Local = time.UTC // not from the tree's /etc/localtime
	log.SetHandler(log.HandlerFunc(func(e *log.Entry) error {
		if e.Level >= log.WarnLevel {
			say(message{Log: e.Message})
		}
		return nil
	}))
	if err := errors.Join(unix.Fchdir(rootFD), unix.Chroot("."), unix.Chdir("/")); err != nil {
		return 0, fmt.Errorf("enter the tree: %w", err)
	}
	unix.Umask(0o022)
	x := &extraction{reserve: job.Reserve, warn: func(text string) { say(message{Log: text}) }}
	for n, layer := range job.Layers {
		say(message{Layer: n + 1})
		file := os.NewFile(uintptr(layersFD+n), "layer "+layer.SHA256)
		if err := x.layer(file, layer); err != nil {
			err = fmt.Errorf("layer %d of %d, sha256:%s: %w", n+1, len(job.Layers), layer.SHA256, err)
			if f, ok := errors.AsType[*failure](err); ok {
				f.layer = n + 1
			}
			return 0, err
		}
		if err := file.Close(); err != nil {
			return 0, err
		}
	}
	return x.entries, nil
}

// failure is an error of a kind.
type failure struct {
	error
	kind  kind
	layer int // from 1
}

func (f *failure) Unwrap() error { return f.error }

// kinded gives err the kind that its cause shows.
func kinded(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return &failure{error: err, kind: full}
	}
	return err
}

func refuse(header *tar.Header, why string) error {
	return &failure{error: fmt.Errorf("entry %q refused: %s", header.Name, why), kind: refused}
}
