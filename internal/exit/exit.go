// Package exit carries an exit status with an error.
//
// The statuses are sysexits that systemd prints by name (design: what every helper is).
package exit

import "errors"

// Status is the exit status of a program.
type Status int

// What a helper's exit says about trying again.
const (
	OK           Status = 0
	Failed       Status = 1  // a retry may help
	Usage        Status = 64 // EX_USAGE
	StandingDown Status = 69 // EX_UNAVAILABLE
	Held         Status = 75 // EX_TEMPFAIL: somebody else holds the lock
	NotPermitted Status = 77 // EX_NOPERM
	Refused      Status = 78 // EX_CONFIG: refused or misconfigured, a retry cannot help
)

type withStatus struct {
	error
	status Status
}

func (e *withStatus) Unwrap() error { return e.error }

// As returns err with a status; a nil err stays nil.
func As(status Status, err error) error {
	if err == nil {
		return nil
	}
	return &withStatus{err, status}
}

// Of is the status of err: OK for nil, the outermost that As gave, otherwise Failed.
func Of(err error) Status {
	if err == nil {
		return OK
	}
	var with *withStatus
	if errors.As(err, &with) {
		return with.status
	}
	return Failed
}
