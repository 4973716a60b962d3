package artifact

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"unbounded/internal/content"
	"unbounded/internal/fetch"
	"unbounded/internal/inventory"
	"unbounded/internal/tree"
)

const (
	programMode = 0o755
	maxProgram  = 1 << 30
)

// Placer brings binaries into one tree.
type Placer struct {
	Client *fetch.Client
	Store  *content.Store
	Root   *tree.Root
}

// Stale is why the tree does not have item as recorded in have, "" when it has. It needs no network.
func Stale(root *tree.Root, item Item, have inventory.Binary) (string, error) {
	switch {
	case len(have.Files) == 0:
		return "missing", nil
	case have.Version != item.Version:
		return fmt.Sprintf("version is %s, want %s", have.Version, item.Version), nil
	case item.SHA256 != "" && item.SHA256 != have.SHA256:
		return "not from the download that is pinned now", nil
	}
	for _, file := range have.Files {
		if why, err := file.Wrong(root); err != nil || why != "" {
			return file.Path + " " + why, err
		}
	}
	return "", nil
}

// Keep names what item has in the store: its note, and its download if that is known.
func (p *Placer) Keep(item Item, have inventory.Binary) []string {
	keep := []string{note(item), item.SHA256, p.Store.Note(note(item))}
	if have.Version == item.Version {
		keep = append(keep, have.SHA256)
	}
	return keep
}

// note is the name of the note that holds the digest of item. The query is no part of it.
func note(item Item) string {
	address, _, _ := strings.Cut(item.URL, "?")
	sum := sha256.Sum256([]byte(address + " " + item.Version))
	return "artifact-" + hex.EncodeToString(sum[:])
}

// Fresh brings item into a tree just unpacked: recognised there, or downloaded.
func (p *Placer) Fresh(ctx context.Context, item Item) (inventory.Binary, error) {
	if found, ok := recognise(p.Root, item); ok {
		return found, nil
	}
	return p.Place(ctx, item, inventory.Binary{})
}

// Place brings item into the tree. have is what is recorded of it: its digest is the
// one to expect again, so that a repair needs no network while the download is stored.
func (p *Placer) Place(ctx context.Context, item Item, have inventory.Binary) (inventory.Binary, error) {
	sha, err := p.digest(ctx, item, have)
	if err != nil {
		return have, err
	}
	result := inventory.Binary{Name: item.Name, Version: item.Version, SHA256: sha}
	if item.archive == nil {
		if file, err := inventory.Measure(p.Root, item.Dest); err == nil && file.SHA256 == sha && file.Mode == programMode {
			result.Files = []inventory.File{file}
			return result, nil
		}
	}
	blob, err := p.get(ctx, item, sha)
	if err != nil {
		return have, err
	}
	defer blob.Close()
	if item.archive == nil {
		err = p.Root.Place(item.Dest, programMode, func(w io.Writer) error {
			_, err := io.Copy(w, blob)
			return err
		})
		if err == nil {
			result.Files, err = p.measure([]string{item.Dest})
		}
	} else {
		result.Files, err = p.extract(ctx, blob, item, p.intact(have, sha))
	}
	if err != nil {
		return have, fmt.Errorf("%s: %w", item, err)
	}
	return result, nil
}

// digest is what the download must have: pinned, recorded, noted by an earlier attempt, or published.
func (p *Placer) digest(ctx context.Context, item Item, have inventory.Binary) (string, error) {
	if item.SHA256 != "" {
		return item.SHA256, nil
	}
	if have.Version == item.Version && have.SHA256 != "" {
		return have.SHA256, nil
	}
	if sha := p.Store.Note(note(item)); sumForm.MatchString(sha) {
		return sha, nil
	}
	sha, err := published(ctx, p.Client, item)
	if err != nil {
		return "", err
	}
	return sha, p.Store.SetNote(note(item), sha)
}

// get returns the verified download, open at its beginning.
func (p *Placer) get(ctx context.Context, item Item, sha string) (*os.File, error) {
	defer p.Store.Claim(sha)()
	file, err := verified(p.Store.Path(sha), sha)
	if err == nil {
		return file, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		if err := p.Store.Delete(sha); err != nil {
			return nil, err
		}
	}
	want := fetch.Want{Name: item.String() + " from " + fetch.Redact(item.URL), URL: item.URL, Size: -1, SHA256: sha}
	if err := p.Client.File(ctx, want, p.Store.Partial(sha), p.Store.Path(sha)); err != nil {
		if errors.Is(err, fetch.ErrContent) && item.Sums != "" {
			// The noted digest may be of what the mirror had before: ask again next time.
			err = errors.Join(err, p.Store.SetNote(note(item), ""))
		}
		return nil, err
	}
	return verified(p.Store.Path(sha), sha)
}

func verified(name, sha string) (*os.File, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	hash := sha256.New()
	_, err = io.Copy(hash, file)
	if err == nil && hex.EncodeToString(hash.Sum(nil)) != sha {
		err = fmt.Errorf("%s: %w", name, content.ErrCorrupt)
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func (p *Placer) measure(names []string) ([]inventory.File, error) {
	var files []inventory.File
	for _, name := range names {
		file, err := inventory.Measure(p.Root, name)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// intact are the programs of the same download that need no repair.
func (p *Placer) intact(have inventory.Binary, sha string) map[string]bool {
	intact := map[string]bool{}
	for _, file := range have.Files {
		if why, err := file.Wrong(p.Root); have.SHA256 == sha && why == "" && err == nil {
			intact[file.Path] = true
		}
	}
	return intact
}

// extract places the programs of a verified archive, each by rename, but those that are intact.
func (p *Placer) extract(ctx context.Context, blob io.Reader, item Item, intact map[string]bool) ([]inventory.File, error) {
	plain, err := gzip.NewReader(blob)
	if err != nil {
		return nil, fmt.Errorf("read archive: %w", err)
	}
	var placed []string
	found := map[string]bool{}
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return nil, fmt.Errorf("read archive: %w", err)
		}
		name, ok := item.archive.program(header)
		if !ok {
			continue
		}
		if header.Size > maxProgram {
			return nil, fmt.Errorf("%q has %d bytes, more than %d", header.Name, header.Size, maxProgram)
		}
		at := path.Join(item.Dest, name)
		if !intact[at] {
			err = p.Root.Place(at, programMode, func(w io.Writer) error {
				_, err := io.Copy(w, archive)
				return err
			})
		}
		if err != nil {
			return nil, err
		}
		if !found[name] {
			found[name], placed = true, append(placed, at)
		}
	}
	for _, name := range item.archive.required {
		if !found[name] {
			return nil, fmt.Errorf("archive holds no program %s%s", item.archive.prefix, name)
		}
	}
	return p.measure(placed)
}

// program is the base name of a member that is to be placed.
func (a *archive) program(header *tar.Header) (string, bool) {
	name := path.Clean(header.Name)
	if header.Typeflag != tar.TypeReg || header.Mode&0o111 == 0 {
		return "", false
	}
	name, ok := strings.CutPrefix(name, a.prefix)
	if !ok || strings.Contains(name, "/") || name == "." || name == ".." || (a.only != "" && name != a.only) {
		return "", false
	}
	return name, true
}
