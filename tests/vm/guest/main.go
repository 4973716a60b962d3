// Command guest is what the test ground puts into a virtual machine. Its name says what it does:
//
//   - agent runs shell commands for the test, which asks over a virtio port, many at a time
//
//   - containerd and kubelet stand in for the real ones in a machine: under emulation those take
//     minutes. Both are up at once; kubelet has the credential that the test has put behind the
//     program's end, and registers its Node with it.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"unbounded/tests/vm/wire"
)

func main() {
	roles := map[string]func() error{"agent": agent, "containerd": containerd, "kubelet": kubelet}
	role := filepath.Base(os.Args[0])
	run, found := roles[role]
	if !found {
		// Other programs of a node are only looked at.
		return
	}
	if err := run(); err != nil {
		log.Fatalf("%s: %v", role, err)
	}
}

// agent answers the requests of the test until the power goes.
func agent() error {
	ports, err := filepath.Glob("/dev/vport*p1")
	if err != nil || len(ports) != 1 {
		return fmt.Errorf("want one virtio port, have %q", ports)
	}
	port, err := os.OpenFile(ports[0], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	answer := func(a wire.Answer) {
		mu.Lock()
		defer mu.Unlock()
		line, err := json.Marshal(a)
		if err == nil {
			_, err = port.Write(append(line, '\n'))
		}
		if err != nil {
			log.Print(err)
		}
	}
	answer(wire.Answer{})
	requests := json.NewDecoder(bufio.NewReader(port))
	for {
		var r wire.Request
		if err := requests.Decode(&r); err != nil {
			return err
		}
		go func() { answer(run(r)) }()
	}
}

func run(r wire.Request) wire.Answer {
	command := exec.CommandContext(context.Background(), "/bin/sh", "-c", r.Script)
	command.Stdin = strings.NewReader(r.Input)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	a := wire.Answer{ID: r.ID, Out: out.String(), Err: errs.String()}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		a.Code = exit.ExitCode()
	case err != nil:
		a.Code, a.Err = -1, a.Err+err.Error()
	}
	return a
}

// containerd listens where kubelet would ask it.
func containerd() error {
	const folder = "/run/containerd"
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	path := filepath.Join(folder, "containerd.sock")
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "unix", path)
	if err != nil {
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		_ = conn.Close()
	}
}

// ready tells systemd.
func ready() error {
	conn, err := new(net.Dialer).DialContext(context.Background(), "unixgram", os.Getenv("NOTIFY_SOCKET"))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.WriteString(conn, "READY=1")
	return err
}

const (
	credentials = "/var/lib/kubelet/pki"
	kubeconfig  = "/var/lib/kubelet/kubeconfig"
)

// kubelet writes its own credential as the real one does, and registers the Node.
func kubelet() error {
	var given wire.Kubelet
	if err := payload(&given); err != nil {
		return err
	}
	if err := keep(given); err != nil {
		return err
	}
	client, err := newClient(given)
	if err != nil {
		return err
	}
	for {
		err := register(client, given)
		if err == nil {
			break
		}
		log.Print(err)
		<-time.After(time.Second)
	}
	select {}
}

// payload reads what was put behind the program's end.
func payload(into any) error {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	_, data, found := bytes.Cut(program, []byte(wire.Mark()))
	if !found {
		return errors.New("no payload in the program")
	}
	return json.Unmarshal(data, into)
}

// keep writes the credential and, last, the kubeconfig.
func keep(given wire.Kubelet) error {
	if err := os.MkdirAll(credentials, 0o755); err != nil {
		return err
	}
	current := filepath.Join(credentials, "kubelet-client-current.pem")
	for _, file := range []struct{ path, content string }{{current, given.Credential}, {kubeconfig, given.Kubeconfig}} {
		if have, err := os.ReadFile(file.path); err == nil && string(have) == file.content {
			continue
		}
		if err := os.WriteFile(file.path+".new", []byte(file.content), 0o600); err != nil {
			return err
		}
		if err := os.Rename(file.path+".new", file.path); err != nil {
			return err
		}
	}
	return nil
}

func newClient(given wire.Kubelet) (*http.Client, error) {
	pair, err := tls.X509KeyPair([]byte(given.Credential), []byte(given.Credential))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(given.CA))
	return &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}},
	}, nil
}

// register makes the Node of this machine, or another machine's Node this one's.
func register(client *http.Client, given wire.Kubelet) error {
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		return err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	status := map[string]any{
		"nodeInfo":   map[string]any{"machineID": strings.TrimSpace(string(id)), "bootID": strings.TrimSpace(string(boot))},
		"conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
	}
	node := map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": given.Node}, "status": status,
	}
	const nodes = "/api/v1/nodes"
	code, err := send(client, http.MethodPost, given.Server+nodes, "application/json", node)
	if err == nil && code == http.StatusConflict {
		code, err = send(client, http.MethodPatch, given.Server+nodes+"/"+given.Node+"/status", "application/merge-patch+json", map[string]any{"status": status})
	}
	if err == nil && code >= http.StatusBadRequest {
		err = fmt.Errorf("register node %s: status %d", given.Node, code)
	}
	return err
}

func send(client *http.Client, method, url, kind string, body any) (int, error) {
	encoded, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	request, err := http.NewRequestWithContext(context.Background(), method, url, bytes.NewReader(encoded))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", kind)
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}
