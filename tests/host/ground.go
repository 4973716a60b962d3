package host

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A booted host is three processes deep:
//
//	test → supervisor → keeper → systemd-nspawn → the host's PID 1
//
// The keeper is PID 1 of a PID namespace and owns a mount and a network
// namespace, so the kernel removes every process, mount and link with it. The
// supervisor outlives the test by a moment and removes what the kernel cannot:
// the cgroup, the folder, and changed kernel parameters. Both are this very
// program under another name; both end when the test's pipe to them closes, so
// that also a killed test leaves nothing behind.
const (
	supervisorName = "unbounded-ground-supervisor"
	keeperName     = "unbounded-ground-keeper"
	janitorName    = "unbounded-ground-janitor"
	specVariable   = "UNBOUNDED_GROUND_SPEC"
)

// Addresses of the ground: services stand outside the host, as they would.
const (
	OutsideIP = "192.168.77.1"
	InsideIP  = "192.168.77.2"
)

// spec tells supervisor and keeper what to make.
type spec struct {
	Dir   string   `json:"dir"`   // the host's own folder
	Size  int64    `json:"size"`  // of its disk, in bytes
	Lower []string `json:"lower"` // read-only trees, the uppermost first
	Plain []string `json:"plain"` // folders of the host that are no overlay
	Args  []string `json:"args"`  // more arguments of systemd-nspawn

	Cgroup string `json:"cgroup"` // of the host with all around it
}

func (s spec) path(name string) string { return filepath.Join(s.Dir, name) }

// event is one line from the keeper to the test.
type event struct {
	Kind   string `json:"kind"` // keeper, up, leader, ready, down, error
	PID    int    `json:"pid,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// become runs the supervisor or the keeper, if this process is to be one.
func become() {
	var role func(spec) error
	switch os.Args[0] {
	case supervisorName:
		role = supervise
	case keeperName:
		role = keep
	case janitorName:
		role = tidy
	default:
		return
	}
	var s spec
	err := json.Unmarshal([]byte(os.Getenv(specVariable)), &s)
	if err == nil {
		err = role(s)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[0], err)
		os.Exit(1)
	}
	os.Exit(0)
}

// self prepares this program to run in another role.
func self(role string, s spec) (*exec.Cmd, error) {
	encoded, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return &exec.Cmd{
		Path:   "/proc/self/exe",
		Args:   []string{role},
		Env:    []string{"PATH=" + searchPath, "LANG=C.UTF-8", specVariable + "=" + string(encoded)},
		Stderr: os.Stderr,
	}, nil
}

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// tidy removes a folder when the test has ended.
func tidy(s spec) error {
	if err := lockFolder(s.Dir); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, os.RemoveAll(s.Dir))
}

// supervise starts the keeper in its namespaces, waits for its end and cleans up.
func supervise(s spec) (err error) {
	// The parent death signal is sent when the thread ends that forked.
	runtime.LockOSThread()
	if err := lockFolder(s.Dir); err != nil {
		return err
	}
	// The folder goes last: as long as there is one, and it is locked, somebody is at work here.
	defer func() { err = errors.Join(err, os.RemoveAll(s.Dir)) }()
	// A test that has ended does not listen, which must not keep its host here.
	signal.Ignore(unix.SIGPIPE)
	kernel, err := holdKernel(filepath.Dir(s.Dir))
	if err != nil {
		return err
	}
	defer kernel.release()
	defer func() { err = errors.Join(err, removeCgroups(filepath.Base(s.Dir))) }()
	s.Cgroup, err = makeCgroup(filepath.Base(s.Dir))
	if err != nil {
		return err
	}
	cgroup, err := os.Open(filepath.Join(s.Cgroup, "keeper"))
	if err != nil {
		return err
	}
	defer cgroup.Close()

	keeper, err := self(keeperName, s)
	if err != nil {
		return err
	}
	keeper.Stdin, keeper.Stdout = os.Stdin, os.Stdout
	keeper.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET,
		Pdeathsig:   unix.SIGKILL,
		UseCgroupFD: true,
		CgroupFD:    int(cgroup.Fd()),
	}
	if err := keeper.Start(); err != nil {
		return fmt.Errorf("start the keeper: %w", err)
	}
	if err := emit(event{Kind: "keeper", PID: keeper.Process.Pid, Detail: s.Cgroup}); err != nil {
		return err
	}
	return keeper.Wait()
}

var emitting sync.Mutex

// emit sends an event to the test.
func emit(e event) error {
	emitting.Lock()
	defer emitting.Unlock()
	return json.NewEncoder(os.Stdout).Encode(e)
}

// keep builds the host's surroundings, then boots it as often as it is told to.
func keep(s spec) error {
	if err := surround(s); err != nil {
		// As an event, because the test shows events where it shows its failure.
		return errors.Join(err, emit(event{Kind: "error", Detail: err.Error()}))
	}
	notifications, err := listenNotify(s.path("notify"))
	if err != nil {
		return err
	}
	go relay(notifications)
	k := &keeper{spec: s}
	go k.reap()
	if err := emit(event{Kind: "up"}); err != nil {
		return err
	}
	return k.obey(os.Stdin)
}

// surround makes the mounts and the network that the host is booted in.
func surround(s spec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	// nspawn wants a /run of its own, on tmpfs, with the mark of a booted system.
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	if err := os.Mkdir("/run/systemd", 0o755); err != nil {
		return err
	}
	if err := mountDisk(s); err != nil {
		return err
	}
	if err := mountRoot(s); err != nil {
		return err
	}
	return makeNetwork()
}

// mountDisk gives the host a file system of its own, sparse in one file. It is real,
// it can be full, and it goes in one unlink: ext4 does not reuse an inode for minutes
// after its removal, so that trees which come and go make each other slow.
func mountDisk(s spec) error {
	image := s.path("disk.img")
	file, err := os.Create(image)
	if err != nil {
		return err
	}
	if err := errors.Join(file.Truncate(s.Size), file.Close()); err != nil {
		return err
	}
	for _, command := range [][]string{
		{"mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard", image},
		{"mount", "-o", "loop", image, s.path("disk")},
		{"rmdir", s.path("disk/lost+found")},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("make the disk of the host: %s: %w: %s", command[0], err, out)
		}
	}
	names := []string{"disk/upper", "disk/work"}
	for i := range s.Plain {
		names = append(names, plainName(i))
	}
	for _, name := range names {
		if err := os.Mkdir(s.path(name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// plainName is where the folder is that a host has instead of an overlay.
func plainName(i int) string { return "disk/plain" + strconv.Itoa(i) }

// mountRoot puts the host's own layer on the cached trees, and plain folders where
// the host itself will use an overlay: overlays do not stack.
func mountRoot(s spec) error {
	root := s.path("root")
	// redirect_dir lets the host rename the folders that come from a cached tree.
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,redirect_dir=on",
		strings.Join(s.Lower, ":"), s.path("disk/upper"), s.path("disk/work"))
	if err := unix.Mount("overlay", root, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount %s: %w", root, err)
	}
	for i, folder := range s.Plain {
		source, target := s.path(plainName(i)), filepath.Join(root, folder)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := copyOwner(target, source); err != nil {
			return err
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", target, err)
		}
	}
	return nil
}

// copyOwner gives target the mode and the owner of source.
func copyOwner(source, target string) error {
	var status unix.Stat_t
	if err := unix.Stat(source, &status); err != nil {
		return fmt.Errorf("stat %s: %w", source, err)
	}
	if err := os.Chown(target, int(status.Uid), int(status.Gid)); err != nil {
		return err
	}
	return unix.Chmod(target, status.Mode&0o7777)
}

// makeNetwork makes the bridge to which nspawn plugs the host at each boot.
func makeNetwork() error {
	batch := "link set lo up\n" +
		"link add br0 type bridge\n" +
		"addr add " + OutsideIP + "/24 dev br0\n" +
		"link set br0 up\n"
	ip := exec.Command("ip", "-batch", "-")
	ip.Stdin = strings.NewReader(batch)
	if out, err := ip.CombinedOutput(); err != nil {
		return fmt.Errorf("make the bridge: %w: %s", err, out)
	}
	return nil
}

// listenNotify opens the socket on which nspawn tells how far the boot is.
func listenNotify(path string) (*net.UnixConn, error) {
	return net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
}

// relay turns nspawn's notifications into events.
func relay(notifications *net.UnixConn) {
	buffer := make([]byte, 4096)
	for {
		n, err := notifications.Read(buffer)
		if err != nil {
			return
		}
		for line := range strings.SplitSeq(string(buffer[:n]), "\n") {
			name, value, _ := strings.Cut(line, "=")
			switch {
			case name == "X_NSPAWN_LEADER_PID":
				_ = emit(event{Kind: "leader", Detail: value})
			case line == "READY=1":
				_ = emit(event{Kind: "ready"})
			}
		}
	}
}

// keeper starts nspawn and takes in every process that ends, its own or not.
type keeper struct {
	spec spec
	mu   sync.Mutex
	boot int // PID of nspawn, or 0
}

// obey carries out the commands of the test until it closes the pipe.
func (k *keeper) obey(commands io.Reader) error {
	lines := bufio.NewScanner(commands)
	for lines.Scan() {
		var err error
		switch lines.Text() {
		case "boot":
			err = k.start()
		default:
			err = fmt.Errorf("no such command: %q", lines.Text())
		}
		if err != nil {
			if err := emit(event{Kind: "error", Detail: err.Error()}); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

// start runs nspawn. It is not waited for here: reap collects every child.
func (k *keeper) start() error {
	program, err := exec.LookPath("systemd-nspawn")
	if err != nil {
		return err
	}
	console, err := os.OpenFile(k.spec.path("console.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer console.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	cgroup, err := os.Open(k.spec.Cgroup)
	if err != nil {
		return err
	}
	defer cgroup.Close()
	k.mu.Lock()
	defer k.mu.Unlock()
	process, err := os.StartProcess(program, append([]string{program}, k.arguments()...), &os.ProcAttr{
		Env: []string{
			"PATH=" + searchPath,
			"LANG=C.UTF-8",
			"NOTIFY_SOCKET=" + k.spec.path("notify"),
			"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1",
			"SYSTEMD_NSPAWN_API_VFS_WRITABLE=1",
		},
		Files: []*os.File{null, console, console},
		// nspawn makes the host's cgroup below its own.
		Sys: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())},
	})
	if err != nil {
		return fmt.Errorf("start systemd-nspawn: %w", err)
	}
	k.boot = process.Pid
	return process.Release()
}

func (k *keeper) arguments() []string {
	// A host is not filtered; what it filters in its own machine is tested.
	return append([]string{
		"--directory=" + k.spec.path("root"),
		"--machine=host",
		"--register=no", "--keep-unit",
		"--network-bridge=br0",
		"--capability=all", "--system-call-filter=@known",
		"--resolv-conf=off", "--timezone=off", "--link-journal=no",
		"--console=pipe", "--notify-ready=yes", "--boot",
	}, k.spec.Args...)
}

// reap collects the children, which in a PID namespace's PID 1 include orphans.
func (k *keeper) reap() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	for range ended {
		for {
			var status unix.WaitStatus
			pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
			k.ended(pid, status)
		}
	}
}

// rebootStatus is how nspawn, when it runs in somebody else's cgroup, says that the
// host wants to be booted again.
const rebootStatus = 133

func (k *keeper) ended(pid int, status unix.WaitStatus) {
	k.mu.Lock()
	was := k.boot
	if pid == was {
		k.boot = 0
	}
	k.mu.Unlock()
	if pid != was {
		return
	}
	if status.ExitStatus() != rebootStatus {
		_ = emit(event{Kind: "down", Detail: describe(status)})
	} else if err := k.start(); err != nil {
		_ = emit(event{Kind: "error", Detail: err.Error()})
	}
}

func describe(status unix.WaitStatus) string {
	if status.Signaled() {
		return "signal " + status.Signal().String()
	}
	return "exit " + strconv.Itoa(status.ExitStatus())
}
