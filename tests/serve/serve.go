// Package serve stands up the servers that a bootstrap downloads from, a registry
// and an artifact mirror, outside a host under test, and makes them fail on demand.
// They run in the test's own process, so a test sees and changes every request.
package serve

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"unbounded/tests/host"
)

// Addresses at which Registry and Mirror stand unless a test wants others.
const (
	RegistryAddress = host.OutsideIP + ":5000"
	MirrorAddress   = host.OutsideIP + ":8000"
)

// Request is one request as it came in.
type Request struct {
	Method, Path, Query, Range string
	Authorization              string
}

// Server is a server that can be told to fail. It answers as Handler does, unless a
// Fault is in the way.
type Server struct {
	URL string

	mu       sync.Mutex
	handler  http.Handler
	faults   []*planned
	requests []Request
}

// planned is a Fault with the requests that it is for.
type planned struct {
	path  string
	left  int // requests that it is still for; negative: all
	fault Fault
}

// Start runs a server outside a host until the test ends.
func Start(t host.T, h *host.Host, address string, handler http.Handler) *Server {
	t.Helper()
	s := &Server{URL: "http://" + address, handler: handler}
	listener := h.Listen(t, address)
	server := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return s
}

// Registry runs the registry with the node image.
func Registry(t host.T, h *host.Host) *Server {
	t.Helper()
	return Start(t, h, RegistryAddress, Layout(artefact(t, "node-image")))
}

// NodeImage is the reference of the node image in Registry.
const NodeImage = RegistryAddress + "/unbounded/node:node"

// Mirror runs the artifact mirror.
func Mirror(t host.T, h *host.Host) *Server {
	t.Helper()
	return Start(t, h, MirrorAddress, http.FileServer(http.Dir(artefact(t, "mirror"))))
}

func artefact(t host.T, name string) string {
	t.Helper()
	path, err := host.Artefact(name)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return path
}

// Fail puts a fault in the way of the next requests whose path contains a text:
// so many of them, or all when times is negative.
func (s *Server) Fail(path string, times int, fault Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &planned{path, times, fault})
}

// Heal removes all faults.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Requests are those that came in so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Forget empties the list of requests.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.admit(r).ServeHTTP(w, r)
}

// admit notes a request and finds who answers it.
func (s *Server) admit(r *http.Request) http.Handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, Request{
		Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery,
		Range: r.Header.Get("Range"), Authorization: r.Header.Get("Authorization"),
	})
	handler := s.handler
	for _, p := range s.faults {
		if p.left == 0 || !strings.Contains(r.URL.Path, p.path) {
			continue
		}
		p.left--
		handler = p.fault(handler)
	}
	return handler
}
