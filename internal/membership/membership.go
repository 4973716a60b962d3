// Package membership waits until the kubelet of a machine is a member of its cluster: it has credentials of
// its own, and its Node exists.
//
// What can be an event is one: files in the tree, the Node. What only can be asked is asked every few
// seconds, and journal and unit status say what is in the way.
package membership

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"unbounded/internal/apiserver"
	"unbounded/internal/credential"
	"unbounded/internal/diagnosis"
	"unbounded/internal/journal"
	"unbounded/internal/kube"
	"unbounded/internal/kubeconfig"
	"unbounded/internal/paths"
	"unbounded/internal/systemd"
	"unbounded/internal/tree"
)

// program is what the API server's log shows.
const program = "unbounded-join"

// pause is between two looks at what only can be asked.
const pause = 5 * time.Second

// Wait is the wait for one kubelet.
type Wait struct {
	slot    string
	root    *tree.Root
	manager *systemd.Manager
	inner   *systemd.Manager
	log     *journal.Log
	doctor  *diagnosis.Doctor
}

// New returns the wait for the kubelet of slot, whose tree is root, and whose Node is
// called node unless its certificate says otherwise. The others are asked while it lasts.
func New(slot, node string, root *tree.Root, manager *systemd.Manager, log *journal.Log) *Wait {
	w := &Wait{slot: slot, root: root, manager: manager, log: log}
	w.doctor = &diagnosis.Doctor{Slot: slot, Node: node, Unit: w.unit, LastWords: w.lastWords}
	return w
}

// Node is the name of the Node, as far as it is known by now.
func (w *Wait) Node() string { return w.doctor.Node }

// Joined returns when the kubelet has joined, or with the reason why it has not: after
// limit, or as soon as waiting is of no use.
func (w *Wait) Joined(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the node has not joined within %v", limit))
	defer cancel()
	watch, err := credential.Changes(ctx, w.root)
	if err != nil {
		return fmt.Errorf("watch kubelet's credentials: %w", err)
	}
	w.bootstrap()
	var own credential.Own
	err = w.until(ctx, watch.C, func(diagnosis.Finding) (bool, error) {
		if err := watch.Refresh(); err != nil {
			return false, err
		}
		own, err = credential.Find(w.root, time.Now())
		if errors.Is(err, credential.ErrNone) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	return w.registered(ctx, own)
}

// bootstrap gives the doctor the credential that kubelet was given. What is not there or
// cannot be read is the node stage's: then the doctor looks at kubelet alone.
func (w *Wait) bootstrap() {
	data, err := w.read(paths.BootstrapKubeconfig)
	if err != nil {
		return
	}
	if client, err := kube.FromKubeconfig(data, w.read, program); err == nil {
		w.doctor.Bootstrap = client
	}
	if given, err := kubeconfig.Parse(data); err == nil {
		if id, _, ok := strings.Cut(given.Token, "."); ok && len(id) == 6 { // <id>.<secret>, not a service account's token
			w.doctor.User = "system:bootstrap:" + id
		}
	}
}

// registered waits for the Node, with kubelet's own credentials: it may see that one.
func (w *Wait) registered(ctx context.Context, own credential.Own) error {
	if own.Node != "" {
		w.doctor.Node = own.Node
	}
	client, err := kube.FromKubeconfig(own.Kubeconfig, w.read, program)
	if errors.Is(err, kube.ErrForeignCredential) {
		w.log.Notice("whether node %s exists cannot be asked: %v", w.doctor.Node, err)
		return w.steady(ctx, own)
	}
	if err != nil {
		return fmt.Errorf("kubelet's own %w", err)
	}
	// A Node of this name may be an earlier installation's: kubelet reports the machine-id, which is each installation's own.
	id, err := w.read(paths.MachineID)
	if err != nil {
		return fmt.Errorf("machine-id of %s: %w", w.slot, err)
	}
	client.Machine = strings.TrimSpace(string(id))
	w.doctor.Own = client
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen := make(chan struct{}, 1)
	go func() {
		// A watch that breaks off is not begun again: asking now and then is enough for the rest.
		if client.AwaitNode(ctx, w.doctor.Node) == nil {
			seen <- struct{}{}
		}
	}()
	return w.until(ctx, seen, func(diagnosis.Finding) (bool, error) {
		there, err := client.HasNode(ctx, w.doctor.Node)
		return err == nil && there, nil // why not, the doctor says
	})
}

// steady waits until a kubelet whose credential we cannot use has run for a while, with its API server in reach.
func (w *Wait) steady(ctx context.Context, own credential.Own) error {
	const enough = 20 * time.Second
	k, err := kubeconfig.Parse(own.Kubeconfig)
	if err != nil {
		return err
	}
	ca := k.CA
	if k.CAFile != "" {
		if ca, err = w.read(k.CAFile); err != nil {
			return err
		}
	}
	w.doctor.Own = anonymous{apiserver.Server{URL: k.Server, CA: ca, Insecure: k.Insecure}}
	return w.until(ctx, nil, func(last diagnosis.Finding) (bool, error) {
		return last.Kind == diagnosis.Waiting && last.For >= enough, nil
	})
}

// anonymous is an API server that is asked for no more than whether it is there.
type anonymous struct{ server apiserver.Server }

func (anonymous) Requests(context.Context) ([]kube.Request, error) { return nil, nil }

func (a anonymous) HasNode(ctx context.Context, _ string) (bool, error) {
	_, err := a.server.Readyz(ctx)
	return false, err
}

// until waits for done, asking again after each event and each look of the doctor.
func (w *Wait) until(ctx context.Context, events <-chan struct{}, done func(last diagnosis.Finding) (bool, error)) error {
	looks, stop := w.looks(ctx)
	defer stop()
	last := diagnosis.Finding{Cause: diagnosis.Cause{Text: "nothing is known yet"}}
	for {
		if ok, err := done(last); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
			return fmt.Errorf("%w: %s", context.Cause(ctx), last.Text)
		case <-events:
		case last = <-looks:
			w.log.Status("waiting for node %s: %s", w.doctor.Node, last.Text)
			if last.Final {
				return errors.New(last.Text)
			}
		}
	}
}

// looks lets the doctor look now and then. stop ends it, and waits for that.
func (w *Wait) looks(ctx context.Context) (looks <-chan diagnosis.Finding, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	out := make(chan diagnosis.Finding)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			finding := w.doctor.Look(ctx, time.Now())
			select {
			case <-ctx.Done():
				return
			case out <- finding:
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	})
	return out, func() { cancel(); all.Wait() }
}

func (w *Wait) read(path string) ([]byte, error) { return w.root.ReadLinked(path, 1<<20) }

// unit is the state of kubelet's unit, from the machine's own manager.
func (w *Wait) unit(ctx context.Context) (systemd.Properties, error) {
	if w.inner == nil {
		inner, err := w.manager.Inner(ctx, w.slot)
		if err != nil {
			return systemd.Properties{}, err
		}
		w.inner = inner
	}
	return w.inner.Properties(ctx, paths.KubeletUnit)
}

func (w *Wait) lastWords(ctx context.Context) string {
	leader, _, found, err := w.manager.Machine(ctx, w.slot)
	if err != nil || !found {
		return ""
	}
	words, err := diagnosis.LastWords(ctx, fmt.Sprintf("/proc/%d/root", leader))
	if err != nil {
		w.log.Warn("read kubelet's log: %v, ignoring", err)
	}
	return words
}
