package main

import (
	"testing"

	"unbounded/internal/systemd"
)

func TestPlanService(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		load   string
		active string
		marked bool
		want   action
		fails  bool
	}{
		{name: "runs", load: "loaded", active: "active", want: leave},
		{name: "runs with old files", load: "loaded", active: "active", marked: true, want: restartIt},
		{name: "reloads", load: "loaded", active: "reloading", want: leave},
		{name: "stopped", load: "loaded", active: "inactive", want: startIt},
		{name: "stopped with new files", load: "loaded", active: "inactive", marked: true, want: restartIt},
		{name: "failed", load: "loaded", active: "failed", want: startIt},
		{name: "starting or waiting for its restart", load: "loaded", active: "activating", want: startIt},
		{name: "stopping", load: "loaded", active: "deactivating", want: startIt},
		{name: "masked", load: "masked", active: "inactive", fails: true},
		{name: "masked with new files", load: "masked", active: "active", marked: true, fails: true},
		{name: "missing", load: "not-found", active: "inactive", fails: true},
		{name: "unreadable", load: "bad-setting", active: "inactive", fails: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := systemd.Properties{LoadState: tt.load, ActiveState: tt.active}
			got, err := planService("kubelet.service", p, tt.marked)
			if got != tt.want || (err != nil) != tt.fails {
				t.Errorf("planService() = %v, %v, want %v, error %v", got, err, tt.want, tt.fails)
			}
		})
	}
}
