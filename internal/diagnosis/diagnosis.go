// Package diagnosis finds out why a kubelet has not joined its cluster.
//
// It asks what kubelet itself has to ask, with the same credentials, in the order in which
// things get in the way: the API server, its certificate, the token, the certificate request,
// and last kubelet's own state. It changes nothing, in the cluster neither.
package diagnosis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"unbounded/internal/apiserver"
	"unbounded/internal/kube"
	"unbounded/internal/systemd"
)

// Kind is what keeps the kubelet from joining.
type Kind int

// The kinds.
const (
	Waiting     Kind = iota // nothing is wrong that can be seen: it takes its time
	Unreachable             // the API server
	Untrusted               // the API server's certificate
	Rejected                // the credential
	Pending                 // the certificate request: nobody has approved or signed it
	Denied                  // the certificate request
	Crashing                // kubelet
)

// Cause is a kind with its objects and what the operator can do, on one line.
type Cause struct {
	Kind Kind
	Text string
}

// lasts is how long a kind has to be seen before waiting longer is of no use; zero: it may
// pass at any time. An old denial is replaced by kubelet's next request within seconds.
func (k Kind) lasts() time.Duration {
	switch k {
	case Untrusted, Rejected, Crashing:
		return 10 * time.Second
	case Denied:
		return 30 * time.Second
	default:
		return 0
	}
}

// API is what is asked of the API server. *kube.Client answers it.
type API interface {
	Requests(ctx context.Context) ([]kube.Request, error)
	HasNode(ctx context.Context, name string) (bool, error)
}

// Doctor looks at one kubelet.
type Doctor struct {
	Slot string
	Node string // the name that kubelet registers under
	User string // who kubelet is with its bootstrap token, system:bootstrap:<id>; "" if unknown
	// Bootstrap asks with the credential that kubelet was given, Own with its own, once it has one. Either may be nil.
	Bootstrap, Own API
	// Unit is the state of kubelet's unit in the machine.
	Unit func(ctx context.Context) (systemd.Properties, error)
	// LastWords is the line of its log that says why it ended, or "".
	LastWords func(ctx context.Context) string

	began    bool
	restarts uint32 // of kubelet, when we began to look
	kind     Kind
	since    time.Time
	times    int
}

// Finding is a cause and how it has lasted.
type Finding struct {
	Cause
	For time.Duration // for how long this kind has been found
	// Final says that it has been found long enough, and more than once, that waiting is of no use.
	Final bool
}

// Look finds the cause.
func (d *Doctor) Look(ctx context.Context, now time.Time) Finding {
	cause := d.cause(ctx)
	if ctx.Err() != nil {
		return Finding{Cause: cause} // what was asked last was not answered because of us
	}
	if cause.Kind != d.kind || d.times == 0 {
		d.kind, d.since, d.times = cause.Kind, now, 0
	}
	d.times++
	lasted, lasts := now.Sub(d.since), cause.Kind.lasts()
	return Finding{cause, lasted, lasts > 0 && d.times > 1 && lasted >= lasts}
}

func (d *Doctor) cause(ctx context.Context) Cause {
	unit := d.unit(ctx)
	var ask func(context.Context) Cause
	switch {
	case d.Own != nil:
		ask = d.asNode
	case d.Bootstrap != nil:
		ask = d.asBootstrap
	}
	if ask == nil {
		return unit
	}
	cause := ask(ctx)
	switch {
	case cause.Kind == Unreachable, cause.Kind == Untrusted, cause.Kind == Rejected:
		return cause // whatever became of kubelet because of it
	case unit.Kind == Crashing:
		return unit // and the requests are those of an earlier kubelet
	}
	return cause
}

// asBootstrap asks for the certificate requests: bootstrap tokens may list them.
func (d *Doctor) asBootstrap(ctx context.Context) Cause {
	requests, err := d.Bootstrap.Requests(ctx)
	if err != nil {
		remedy := "the token is unknown to the cluster or has expired: create another one (kubeadm token create), set Kubelet.Auth.BootstrapToken and start again"
		return blocked(err, "the bootstrap token", remedy)
	}
	var own []kube.Request // the newest first
	for _, r := range requests {
		if r.Subject == "system:node:"+d.Node && (d.User == "" || r.User == d.User) {
			own = append(own, r)
		}
	}
	if len(own) == 0 {
		return Cause{Waiting, "kubelet has not asked for a certificate yet"}
	}
	if refused := denials(own); own[0].State == kube.Pending && len(refused) > 1 {
		return Cause{Denied, fmt.Sprintf("certificate requests of this node are denied again and again%s, and kubelet has asked once more (%s): find out who denies them, and why this node is not wanted",
			because(refused[0]), own[0].Name)}
	}
	return request(own[0])
}

// denials are those requests before the newest that were denied while kubelet asked again
// and again: it does so for ever, with pauses that grow.
func denials(own []kube.Request) []kube.Request {
	const while = 15 * time.Minute
	var denied []kube.Request
	for _, r := range own[1:] {
		if r.State == kube.Denied && own[0].Created.Sub(r.Created) < while {
			denied = append(denied, r)
		}
	}
	return denied
}

func because(r kube.Request) string {
	if r.Reason == "" {
		return ""
	}
	return fmt.Sprintf(" (%s)", r.Reason)
}

func request(r kube.Request) Cause {
	switch r.State {
	case kube.Denied:
		return Cause{Denied, fmt.Sprintf("certificate request %s of this node was denied%s: find out who denies it, and why this node is not wanted", r.Name, because(r))}
	case kube.Failed:
		return Cause{Denied, fmt.Sprintf("certificate request %s of this node was approved but could not be signed%s: see the log of kube-controller-manager", r.Name, because(r))}
	case kube.Approved:
		return Cause{Pending, fmt.Sprintf("certificate request %s of this node is approved but not signed: does kube-controller-manager run, with a CA to sign with?", r.Name)}
	case kube.Pending:
		return Cause{Pending, fmt.Sprintf("certificate request %s of this node is pending: approve it with `kubectl certificate approve %s`, or let the cluster approve the requests of bootstrap tokens", r.Name, r.Name)}
	default:
		return Cause{Waiting, fmt.Sprintf("certificate request %s is issued, kubelet has to fetch it", r.Name)}
	}
}

// asNode asks for the Node, which a kubelet may see if it is its own.
func (d *Doctor) asNode(ctx context.Context) Cause {
	there, err := d.Own.HasNode(ctx, d.Node)
	switch {
	case err != nil:
		return blocked(err, "kubelet's own credential", "the cluster does not know it (was it built anew, or given another CA?): reset this host and start again")
	case there:
		return Cause{Waiting, fmt.Sprintf("node %s is there", d.Node)}
	}
	return Cause{Waiting, fmt.Sprintf("kubelet has credentials and has not registered node %s yet", d.Node)}
}

// blocked says what an error of the API means for a kubelet with that credential.
func blocked(err error, credential, remedy string) Cause {
	switch kind := apiserver.KindOf(err); {
	case kind == apiserver.Unreachable:
		return Cause{Unreachable, fmt.Sprintf("the API server is unreachable: %v: check Kubelet.ApiServer, the name service and the firewalls between this host and it", err)}
	case kind == apiserver.Untrusted && apiserver.OutOfDate(err):
		return Cause{Untrusted, fmt.Sprintf("the certificate of the API server is not trusted: %v: renew it, or set the clock of this host", err)}
	case kind == apiserver.Untrusted:
		return Cause{Untrusted, fmt.Sprintf("the certificate of the API server is not trusted: %v: Cluster.CaCertBase64 must hold the CA that signed it", err)}
	case kind == apiserver.Rejected:
		return Cause{Rejected, fmt.Sprintf("%s is rejected: %v: %s", credential, err, remedy)}
	case kind == apiserver.Forbidden:
		return Cause{Waiting, fmt.Sprintf("%s may not look: %v", credential, err)}
	}
	return Cause{Waiting, err.Error()}
}

// crashes is how many restarts within our time are a loop.
const crashes = 5

// unit looks at kubelet's unit. Its counter may be high from before.
func (d *Doctor) unit(ctx context.Context) Cause {
	unit, err := d.Unit(ctx)
	if err != nil {
		if errors.Is(err, systemd.ErrClosed) {
			return Cause{Waiting, fmt.Sprintf("machine %s has stopped or was started again: see `journalctl -u systemd-nspawn@%s`", d.Slot, d.Slot)}
		}
		return Cause{Waiting, fmt.Sprintf("the state of kubelet cannot be read: %v", err)}
	}
	if !d.began || unit.NRestarts < d.restarts {
		d.began, d.restarts = true, unit.NRestarts
	}
	again := unit.NRestarts - d.restarts
	switch {
	case again >= crashes:
		return d.crash(ctx, fmt.Sprintf("kubelet ends again and again (%d times, %s)", again, result(unit)))
	case unit.ActiveState == "failed":
		return d.crash(ctx, fmt.Sprintf("kubelet has failed (%s)", result(unit)))
	case !unit.Runs():
		return d.crash(ctx, fmt.Sprintf("kubelet does not run (%s)", unit.ActiveState))
	}
	return Cause{Waiting, "kubelet runs and has not joined yet"}
}

func result(unit systemd.Properties) string {
	if unit.ExecMainCode == 1 && unit.ExecMainStatus != 0 {
		return fmt.Sprintf("exit status %d", unit.ExecMainStatus)
	}
	return unit.Result
}

func (d *Doctor) crash(ctx context.Context, what string) Cause {
	if words := d.LastWords(ctx); words != "" {
		what += ": " + words
	}
	return Cause{Crashing, fmt.Sprintf("%s: see `journalctl -M %s -u kubelet`", what, d.Slot)}
}
