package diagnosis

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"unbounded/internal/apiserver"
	"unbounded/internal/kube"
	"unbounded/internal/systemd"
)

type api struct {
	requests []kube.Request
	node     bool
	err      error
}

func (a api) Requests(context.Context) ([]kube.Request, error) { return a.requests, a.err }
func (a api) HasNode(context.Context, string) (bool, error)    { return a.node, a.err }
func failing(kind apiserver.Kind) api                          { return api{err: answered(kind, errors.New("cause"))} }

func answered(kind apiserver.Kind, err error) error {
	return fmt.Errorf("list certificate requests: %w", &apiserver.Error{Kind: kind, Server: "https://api.example.test:6443", Err: err})
}

func asked(state kube.State) api {
	return api{requests: []kube.Request{
		{Name: "csr-other", User: "system:bootstrap:abcdef", Subject: "system:node:other", State: kube.Denied},
		{Name: "csr-forged", User: "system:serviceaccount:x", Subject: "system:node:n", State: kube.Denied},
		{Name: "csr-new", User: "system:bootstrap:abcdef", Subject: "system:node:n", State: state, Reason: "because"},
		{Name: "csr-old", User: "system:bootstrap:abcdef", Subject: "system:node:n", State: kube.Denied},
	}}
}

// again is a node that asks anew after as many denials, the last of an hour ago.
func again(denied int) api {
	now := time.Now()
	one := func(name string, age time.Duration, state kube.State) kube.Request {
		return kube.Request{Name: name, User: "system:bootstrap:abcdef", Subject: "system:node:n", State: state, Created: now.Add(-age), Reason: "because"}
	}
	requests := []kube.Request{one("csr-3", 0, kube.Pending), one("csr-2", time.Minute, kube.Denied), one("csr-1", 2*time.Minute, kube.Denied)}
	return api{requests: append(requests[:1+denied], one("csr-0", time.Hour, kube.Denied))}
}

var (
	running = systemd.Properties{ActiveState: "active"}
	looping = systemd.Properties{ActiveState: "activating", NRestarts: 7, Result: "exit-code", ExecMainCode: 1, ExecMainStatus: 3}
)

// doctor looks at node n, whose kubelet is in the state unit.
func doctor(bootstrap, own API, unit systemd.Properties, unitErr error) *Doctor {
	return &Doctor{
		Slot: "kube1", Node: "n", User: "system:bootstrap:abcdef", Bootstrap: bootstrap, Own: own,
		Unit:      func(context.Context) (systemd.Properties, error) { return unit, unitErr },
		LastWords: func(context.Context) string { return "no such flag" },
		began:     true,
	}
}

func TestLook(t *testing.T) {
	for _, test := range []struct {
		name   string
		doctor *Doctor
		want   Kind
		text   []string
	}{
		{"unreachable", doctor(failing(apiserver.Unreachable), nil, running, nil), Unreachable, []string{"https://api.example.test:6443: cause", "Kubelet.ApiServer"}},
		{"untrusted", doctor(failing(apiserver.Untrusted), nil, running, nil), Untrusted, []string{"not trusted", "Cluster.CaCertBase64"}},
		{
			"out of date", doctor(api{err: answered(apiserver.Untrusted, x509.CertificateInvalidError{Reason: x509.Expired})}, nil, running, nil),
			Untrusted,
			[]string{"clock of this host"},
		},
		{"rejected", doctor(failing(apiserver.Rejected), nil, running, nil), Rejected, []string{"the bootstrap token is rejected", "Kubelet.Auth.BootstrapToken"}},
		{"may not list", doctor(failing(apiserver.Forbidden), nil, running, nil), Waiting, []string{"may not look"}},
		{"may not list, and kubelet crashes", doctor(failing(apiserver.Forbidden), nil, looping, nil), Crashing, []string{"no such flag"}},
		{"pending", doctor(asked(kube.Pending), nil, running, nil), Pending, []string{"csr-new", "kubectl certificate approve csr-new"}},
		{"not signed", doctor(asked(kube.Approved), nil, running, nil), Pending, []string{"csr-new", "kube-controller-manager"}},
		{"denied", doctor(asked(kube.Denied), nil, running, nil), Denied, []string{"csr-new", "denied (because)"}},
		{"cannot be signed", doctor(asked(kube.Failed), nil, running, nil), Denied, []string{"csr-new", "could not be signed (because)"}},
		{"issued", doctor(asked(kube.Issued), nil, running, nil), Waiting, nil},
		{"denied again and again", doctor(again(2), nil, running, nil), Denied, []string{"csr-3", "again and again (because)"}},
		{"denied once before", doctor(again(1), nil, running, nil), Pending, []string{"csr-3"}},
		{"nothing asked", doctor(api{}, nil, running, nil), Waiting, nil},
		{"crash loop", doctor(api{}, nil, looping, nil), Crashing, []string{"7 times, exit status 3", "no such flag", "journalctl -M kube1 -u kubelet"}},
		{"crashes because of the API", doctor(failing(apiserver.Unreachable), nil, looping, nil), Unreachable, nil},
		{"crash loop after a denial", doctor(asked(kube.Denied), nil, looping, nil), Crashing, nil},
		{"start limit", doctor(api{}, nil, systemd.Properties{ActiveState: "failed", Result: "start-limit-hit"}, nil), Crashing, []string{"failed (start-limit-hit)"}},
		{"stopped", doctor(api{}, nil, systemd.Properties{ActiveState: "inactive"}, nil), Crashing, []string{"does not run"}},
		{"starting", doctor(api{}, nil, systemd.Properties{ActiveState: "inactive", Job: 3}, nil), Waiting, nil},
		{"few restarts", doctor(api{}, nil, systemd.Properties{ActiveState: "active", NRestarts: 4}, nil), Waiting, nil},
		{"machine gone", doctor(nil, nil, running, fmt.Errorf("x: %w", systemd.ErrClosed)), Waiting, []string{"machine kube1 has stopped"}},
		{"no bootstrap credential", doctor(nil, nil, looping, nil), Crashing, nil},
		{"no node yet", doctor(nil, api{}, running, nil), Waiting, []string{"has not registered node n"}},
		{"own certificate rejected", doctor(asked(kube.Denied), failing(apiserver.Rejected), running, nil), Rejected, []string{"kubelet's own credential is rejected", "reset"}},
		{"no node, kubelet crashes", doctor(nil, api{}, looping, nil), Crashing, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := test.doctor.Look(t.Context(), time.Now())
			if got.Kind != test.want || got.Final {
				t.Errorf("Look = %d %q, final %v, want kind %d", got.Kind, got.Text, got.Final, test.want)
			}
			for _, part := range test.text {
				if !strings.Contains(got.Text, part) {
					t.Errorf("Look: %q, want %q in it", got.Text, part)
				}
			}
		})
	}
}

// TestFinal: a cause ends the wait when it lasts, was seen more than once, and cannot pass by itself.
func TestFinal(t *testing.T) {
	began := time.Now()
	for _, test := range []struct {
		name string
		api  API
		unit systemd.Properties
		want []bool // at 0, 5, 10, … seconds
	}{
		{"unreachable may pass", failing(apiserver.Unreachable), running, []bool{false, false, false, false, false, false, false}},
		{"pending may pass", asked(kube.Pending), running, []bool{false, false, false, false, false, false, false}},
		{"untrusted", failing(apiserver.Untrusted), running, []bool{false, false, true}},
		{"rejected", failing(apiserver.Rejected), running, []bool{false, false, true}},
		{"denied", asked(kube.Denied), running, []bool{false, false, false, false, false, false, true}},
		{"crashing", api{}, looping, []bool{false, false, true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := doctor(test.api, nil, test.unit, nil)
			for i, want := range test.want {
				got := d.Look(t.Context(), began.Add(time.Duration(i)*5*time.Second))
				if got.Final != want || got.For != time.Duration(i)*5*time.Second {
					t.Errorf("after %ds: final = %v, for %v, want %v", 5*i, got.Final, got.For, want)
				}
			}
		})
	}
	d := doctor(failing(apiserver.Rejected), nil, running, nil)
	d.Look(t.Context(), began)
	d.Bootstrap = asked(kube.Pending)
	d.Look(t.Context(), began.Add(10*time.Second))
	d.Bootstrap = failing(apiserver.Rejected)
	if d.Look(t.Context(), began.Add(11*time.Second)).Final {
		t.Error("a cause that went away and came back is final at once")
	}
	if !d.Look(t.Context(), began.Add(21*time.Second)).Final {
		t.Error("a cause that came back is never final")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if d.Look(ctx, began.Add(time.Hour)).Final {
		t.Error("a look that was broken off is final")
	}
}

// TestRestartsFromBefore: an old loop is not held against a kubelet that runs by now.
func TestRestartsFromBefore(t *testing.T) {
	unit := systemd.Properties{ActiveState: "active", NRestarts: 200}
	d := doctor(api{}, nil, running, nil)
	d.began = false
	d.Unit = func(context.Context) (systemd.Properties, error) { return unit, nil }
	for _, step := range []struct {
		restarts uint32
		want     Kind
	}{{200, Waiting}, {204, Waiting}, {205, Crashing}, {0, Waiting}, {4, Waiting}, {5, Crashing}} {
		unit.NRestarts = step.restarts
		if got := d.Look(t.Context(), time.Now()); got.Kind != step.want {
			t.Errorf("%d restarts: kind %d, want %d", step.restarts, got.Kind, step.want)
		}
	}
}

func TestLastWords(t *testing.T) {
	for _, test := range []struct{ name, log, want string }{
		{"nothing", "", ""},
		{
			"klog", `I1130 12:00:00.000000     1 server.go:1] "starting"
E1130 12:00:00.000001      85 run.go:72] "command failed" err="failed to load kubelet config file"
`, `"command failed" err="failed to load kubelet config file"`,
		},
		{"usage after the error", "E1130 12:00:00.000001      85 run.go:72] bad flag\nUsage:\n  kubelet\n\n", "bad flag"},
		{"plain", "first\nsecond\n\n", "second"},
		{"a token", "token abcdef.0123456789abcdef is odd", "token [redacted] is odd"},
		{"long", strings.Repeat("é", 400), strings.Repeat("é", 250) + "…"},
	} {
		if got := lastWords(test.log); got != test.want {
			t.Errorf("%s: lastWords = %q, want %q", test.name, got, test.want)
		}
	}
}
