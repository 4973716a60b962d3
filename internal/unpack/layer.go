package unpack

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/klauspost/pgzip"
	"github.com/opencontainers/umoci/oci/layer"
	"golang.org/x/sys/unix"
)

// Limits of one image. What is beyond them is no image of a node but an attack.
const (
	maxEntries = 2_000_000
	maxID      = 1<<32 - 1 // is "unchanged" to chown: would silently be root
	maxWindow  = 128 << 20 // of zstd: memory
)

// extraction is the state over all layers of an image. It works at the root of its process.
type extraction struct {
	reserve int64 // bytes that must stay free
	entries int64
	unasked int64 // bytes written since the file system was asked for its space
	warn    func(string)
}

// layer unpacks one layer over what is there, and verifies it: the blob's digest and size, and the plain archive's.
func (x *extraction) layer(file *os.File, want Layer) error {
	blob, plain := sha256.New(), sha256.New()
	counted := &counter{r: io.TeeReader(file, blob)}
	compressed := bufio.NewReaderSize(counted, 1<<20)
	stream, err := decompress(compressed, plain)
	if err == nil {
		if err = x.archive(tar.NewReader(stream)); err == nil {
			_, err = io.Copy(io.Discard, stream) // what follows the archive is in the digest, too
		}
		stream.close()
	}
	// Only now the blob's own digest is known, and it says whose fault an error is.
	if _, drain := io.Copy(io.Discard, compressed); drain != nil {
		return errors.Join(err, drain)
	}
	if got := hex.EncodeToString(blob.Sum(nil)); got != want.SHA256 || counted.n != want.Size {
		return &failure{error: fmt.Errorf("stored blob has %d bytes with sha256 %s, want %d", counted.n, got, want.Size), kind: corrupt}
	}
	if err != nil {
		return kinded(err)
	}
	if stream.isPlain {
		plain = blob
	}
	if got := hex.EncodeToString(plain.Sum(nil)); got != want.DiffID {
		return &failure{error: fmt.Errorf("plain layer has sha256 %s, the image's configuration says %s", got, want.DiffID), kind: refused}
	}
	return nil
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// stream is a plain archive.
type stream struct {
	io.Reader
	isPlain bool
	close   func()
}

// decompress looks at the first bytes, whatever the media type said. The plain bytes go
// through digest, but for an uncompressed layer: there the blob's own is the same.
func decompress(r *bufio.Reader, digest hash.Hash) (*stream, error) {
	magic, err := r.Peek(4)
	if err != nil {
		return nil, fmt.Errorf("read layer: %w", err)
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		reader, err := pgzip.NewReaderN(r, 512<<10, 8) // reads ahead: inflates on the other core
		if err != nil {
			return nil, fmt.Errorf("read gzip: %w", err)
		}
		return &stream{Reader: io.TeeReader(reader, digest), close: func() { _ = reader.Close() }}, nil
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		reader, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, fmt.Errorf("read zstd: %w", err)
		}
		return &stream{Reader: io.TeeReader(reader, digest), close: reader.Close}, nil
	}
	return &stream{Reader: r, isPlain: true, close: func() {}}, nil
}

// archive unpacks the entries. The extractor is a new one for each layer: it remembers
// what this layer wrote, so that a whiteout does not take it away.
func (x *extraction) archive(archive *tar.Reader) error {
	extractor := layer.NewTarExtractor(&layer.UnpackOptions{OnDiskFormat: layer.DirRootfs{}})
	for {
		header, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if header.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := x.check(header); err != nil {
			return err
		}
		name := header.Name
		if err := extractor.UnpackEntry("/", header, archive); err != nil {
			return fmt.Errorf("unpack %q: %w", name, err)
		}
		if err := kept(header); err != nil {
			return err
		}
	}
}

// check refuses what must not reach the extractor, and puts right what it cannot take.
func (x *extraction) check(header *tar.Header) error {
	// The extractor cleans names, so the name to judge is the clean one. These three
	// would have it remove the folder, its parent, or what is beside the tree.
	switch path.Base(path.Clean("/" + header.Name)) {
	case ".wh.", ".wh..", ".wh...":
		return refuse(header, "a whiteout of no name, or of a dot")
	}
	if header.Uid < 0 || header.Uid >= maxID || header.Gid < 0 || header.Gid >= maxID {
		return refuse(header, fmt.Sprintf("owner %d:%d is out of range", header.Uid, header.Gid))
	}
	if x.entries++; x.entries > maxEntries {
		return refuse(header, fmt.Sprintf("more than %d entries", maxEntries))
	}
	switch header.Typeflag {
	case tar.TypeGNUSparse, tar.TypeCont:
		header.Typeflag = tar.TypeReg // archive/tar has put the holes in
	case tar.TypeReg, tar.TypeDir, tar.TypeLink:
	default:
		x.dropUserXattrs(header)
	}
	return x.space(header)
}

// dropUserXattrs: links and devices cannot have them, on any file system.
func (x *extraction) dropUserXattrs(header *tar.Header) {
	isUser := func(name, _ string) bool { return strings.HasPrefix(name, "user.") }
	attributes := header.Xattrs //nolint:staticcheck // SA1019: it is what the extractor reads
	before := len(attributes)
	maps.DeleteFunc(attributes, isUser)
	if len(attributes) != before {
		x.warn(fmt.Sprintf("%q: attributes in user.* left out: only files and folders can have them", header.Name))
	}
}

// Intervals at which the file system is asked for its space.
const (
	askEntries = 4096
	askBytes   = 16 << 20
)

// space fails before the entry that would leave less than the reserve. A hole in a
// sparse file counts: it is written out.
func (x *extraction) space(header *tar.Header) error {
	if header.Size < askBytes { // a size may be anything: no sum with it
		x.unasked += header.Size
		if x.unasked < askBytes && x.entries%askEntries != 0 {
			return nil
		}
	}
	x.unasked = 0
	var stat unix.Statfs_t
	if err := unix.Statfs("/", &stat); err != nil {
		return fmt.Errorf("ask for free space: %w", err)
	}
	free := int64(stat.Bavail) * stat.Bsize
	if free-header.Size < x.reserve {
		return &failure{error: fmt.Errorf("entry %q of %d bytes: %d bytes available, of which %d stay free", header.Name, header.Size, free, x.reserve), kind: full}
	}
	if stat.Files > 0 && stat.Ffree < askEntries {
		return &failure{error: fmt.Errorf("entry %q: %d inodes available", header.Name, stat.Ffree), kind: full}
	}
	return nil
}

// kept refuses a file system that lost the capabilities of a program: the extractor
// takes "not supported" for harmless, and without them the program does not work.
func kept(header *tar.Header) error {
	const capability = "security.capability"
	if header.Typeflag != tar.TypeReg || header.Xattrs[capability] == "" { //nolint:staticcheck // SA1019: as above
		return nil
	}
	if _, err := unix.Lgetxattr(path.Clean("/"+header.Name), capability, make([]byte, 64)); err != nil {
		return refuse(header, fmt.Sprintf("the file system cannot keep its file capabilities: %v", err))
	}
	return nil
}
