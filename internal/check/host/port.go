package host

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"unbounded/internal/check"
	"unbounded/internal/listener"
	"unbounded/internal/paths"
)

// Ports of the machine's programs, which share the host's network.
const (
	kubeletDefault    = 10250
	containerdMetrics = 10257
)

// kubeletPort is the port that the operator gave kubelet, or its default.
func (h *Host) kubeletPort() uint16 {
	text := ""
	switch value := h.setting("port").(type) {
	case json.Number:
		text = value.String()
	case float64, int, int64:
		text = fmt.Sprint(value)
	}
	if port, err := strconv.ParseUint(text, 10, 16); err == nil && port > 0 {
		return uint16(port)
	}
	return kubeletDefault
}

// port tells who already listens on the port of program. Our own machine's program does
// on every start but the first; whoever cannot be looked into is not ours.
func (h *Host) port(program string, port uint16) func(context.Context) []check.Result {
	return func(context.Context) []check.Result {
		target := fmt.Sprintf("0.0.0.0:%d", port)
		sockets, err := listener.On(h.at("/proc"), port)
		if err != nil {
			return one(check.Fail(check.May, target, "who listens there cannot be found out: %v", err))
		}
		var results []check.Result
		ours := false
		for _, socket := range sockets {
			if len(socket.Owners) == 0 {
				results = append(results, check.Fail(check.May, target, "%s needs port %d, on which %s listens already; its process cannot be found", program, port, socket.Address).
					Fix("look for it with ss -tlnp, also in other containers, and stop it"))
			}
			for _, owner := range socket.Owners {
				if h.own(owner, program) {
					ours = true
					continue
				}
				results = append(results, check.Fail(check.May, target, "%s needs port %d, on which %s listens already: %s", program, port, socket.Address, owner).
					Fix("%s", stop(owner)))
			}
		}
		switch {
		case len(results) > 0:
			return results
		case ours:
			return one(check.Pass(target, "held by the %s of this machine", program))
		}
		return one(check.Pass(target, "is free"))
	}
}

// own tells whether the process is program, run from one of our machines' trees.
func (h *Host) own(owner listener.Owner, program string) bool {
	for _, slot := range paths.Slots() {
		if owner.Inside(h.at("/proc"), h.at(paths.Tree(slot)), program) {
			return true
		}
	}
	return false
}

func stop(owner listener.Owner) string {
	if owner.Unit == "" {
		return fmt.Sprintf("stop process %d", owner.PID)
	}
	return "stop and disable " + owner.Unit
}
