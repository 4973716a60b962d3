package unpack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// benchName is what the test calls itself when it unpacks for a benchmark, in a process
// whose memory can be told from the test's own.
const benchName = "unbounded-unpack-bench"

// benchChild runs one of the two, and says what it cost. It is a process of its own so
// that it is small when it starts the child: what the parent weighs counts for a child, too.
func benchChild() {
	if os.Args[0] != benchName {
		return
	}
	began := time.Now()
	err := benchRun(os.Args[1], os.Args[2:])
	wall := time.Since(began)
	var usage syscall.Rusage
	if err := errors.Join(err, syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	cpu := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	_ = json.NewEncoder(os.Stdout).Encode(cost{wall, cpu, usage.Maxrss})
	os.Exit(0)
}

type cost struct {
	Wall, CPU time.Duration
	RSS       int64 // kB
}

func benchRun(what string, args []string) error {
	if what == "tar" {
		out, err := exec.CommandContext(context.Background(), "tar", args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("tar: %w: %s", err, out)
		}
		return nil
	}
	var layers []Layer
	if err := json.Unmarshal([]byte(args[1]), &layers); err != nil {
		return err
	}
	layers[0].Path = args[2]
	_, err := Tree(context.Background(), args[0], layers, Options{})
	return err
}

// BenchmarkAgainstTar unpacks a real tree, the Go toolchain's, and has tar unpack the same
// blob, in turns. The metrics are medians: time and processor time as ratios to tar (with
// what it starts), seconds, and peak memory. tar verifies nothing and keeps no digest.
func BenchmarkAgainstTar(b *testing.B) {
	needRoot(b)
	goroot, err := exec.CommandContext(b.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		b.Fatal(err)
	}
	plain := filepath.Join(b.TempDir(), "plain")
	if out, err := exec.CommandContext(b.Context(), "tar", "-cf", plain, "--format=pax", "--numeric-owner", "-C", strings.TrimSpace(string(goroot)), "bin", "pkg", "src").CombinedOutput(); err != nil {
		b.Fatalf("tar: %v: %s", err, out)
	}
	diffID, _ := digestOf(b, plain)
	for _, kind := range []struct {
		name, program, flag string
	}{{"gzip", "gzip", "-z"}, {"zstd", "zstd", "--zstd"}, {"plain", "cat", "-a"}} {
		blob := filepath.Join(b.TempDir(), kind.name)
		compress(b, kind.program, plain, blob)
		sum, size := digestOf(b, blob)
		layer, err := json.Marshal([]Layer{{SHA256: sum, Size: size, DiffID: diffID}})
		if err != nil {
			b.Fatal(err)
		}
		for _, on := range []string{"disk", "tmpfs"} {
			b.Run(kind.name+"/"+on, func(b *testing.B) {
				base := b.TempDir()
				if on == "tmpfs" {
					if err := unix.Mount("tmpfs", base, "tmpfs", 0, "size=80%"); err != nil {
						b.Fatal(err)
					}
					b.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
				}
				var tar, ours []cost
				fresh := 0
				dir := func() string { // fresh ones, removed at the end: ext4 is slow for a while after a removal
					fresh++
					path := filepath.Join(base, fmt.Sprint(fresh))
					if err := os.Mkdir(path, 0o755); err != nil {
						b.Fatal(err)
					}
					return path
				}
				for b.Loop() {
					tar = append(tar, measure(b, "tar", "-xp", kind.flag, "--xattrs", "--xattrs-include=*", "--numeric-owner", "--same-owner", "-f", blob, "-C", dir()))
					ours = append(ours, measure(b, "unpack", dir(), string(layer), blob))
				}
				wall := func(c cost) float64 { return c.Wall.Seconds() }
				cpu := func(c cost) float64 { return c.CPU.Seconds() }
				rss := func(c cost) float64 { return float64(c.RSS) / 1024 }
				b.ReportMetric(median(ours, wall)/median(tar, wall), "time-ratio")
				b.ReportMetric(median(ours, cpu)/median(tar, cpu), "cpu-ratio")
				b.ReportMetric(median(ours, wall), "s")
				b.ReportMetric(median(ours, rss), "MB-peak")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func compress(b *testing.B, program, from, to string) {
	b.Helper()
	in, err := os.Open(from)
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		b.Fatal(err)
	}
	command := exec.CommandContext(b.Context(), program)
	command.Stdin, command.Stdout = in, out
	if err := errors.Join(command.Run(), out.Close()); err != nil {
		b.Fatalf("%s: %v", program, err)
	}
}

func digestOf(b *testing.B, path string) (string, int64) {
	b.Helper()
	file, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	hash := sha256.New()
	size, err := io.Copy(hash, file)
	if err != nil {
		b.Fatal(err)
	}
	return hex.EncodeToString(hash.Sum(nil)), size
}

func measure(b *testing.B, args ...string) cost {
	b.Helper()
	command := exec.CommandContext(b.Context(), "/proc/self/exe")
	command.Args = append([]string{benchName}, args...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	var c cost
	if err = errors.Join(err, json.Unmarshal(out, &c)); err != nil {
		b.Fatalf("%v: %s", err, stderr.String())
	}
	return c
}

func median(costs []cost, of func(cost) float64) float64 {
	var values []float64
	for _, c := range costs {
		values = append(values, of(c))
	}
	slices.Sort(values)
	return values[len(values)/2]
}
