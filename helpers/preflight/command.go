package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"unbounded/internal/admission"
	"unbounded/internal/check"
	"unbounded/internal/check/remote"
	"unbounded/internal/config"
	"unbounded/internal/exit"
	"unbounded/internal/installed"
	"unbounded/internal/paths"
)

const usage = `usage: unbounded-preflight check [--config FILE] [--output text|json] [--ignore NAME,...|all] [--fail-on-warnings]

Looks whether this host can become a node, and changes nothing.
`

// command is what the operator asked for.
type command struct {
	config         string // "": where admission finds it
	credentials    string // folder of credentials that systemd has given; "" without one
	output         string
	ignore         []string
	failOnWarnings bool
}

func parse(args []string, configFile string) (command, error) {
	c := command{config: configFile, output: "text"}
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&c.config, "config", c.config, "")
	flags.StringVar(&c.output, "output", c.output, "")
	flags.BoolVar(&c.failOnWarnings, "fail-on-warnings", false, "")
	names := func(list string) error {
		for name := range strings.SplitSeq(list, ",") {
			if name = strings.TrimSpace(name); name != "" {
				c.ignore = append(c.ignore, name)
			}
		}
		return nil
	}
	flags.Func("ignore", "", names)
	flags.Func("ignore-preflight-errors", "", names) // the public agent's name
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	switch {
	case flags.NArg() > 0:
		return c, fmt.Errorf("unknown argument %q", flags.Arg(0))
	case c.output != "text" && c.output != "json":
		return c, fmt.Errorf("--output is %q, want text or json", c.output)
	}
	return c, nil
}

// runCheck is the verb check. It returns the exit status.
func runCheck(args []string, configFile, credentials string, stdout, stderr io.Writer) exit.Status {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	c, err := parse(args, configFile)
	c.credentials = credentials
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, err = io.WriteString(stdout, usage)
		return exit.Of(err)
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "unbounded-preflight: %v\n%s", err, usage)
		return exit.Usage
	}
	report, err := c.run(ctx, "/")
	if err == nil && c.output == "json" {
		err = report.JSON(stdout)
	} else if err == nil {
		err = report.Text(stdout)
	}
	switch {
	case err != nil:
		_, _ = fmt.Fprintf(stderr, "unbounded-preflight: %v\n", err)
		return exit.Of(err)
	case report.Err() != nil:
		return exit.Of(report.Err())
	case report.Status != "ok":
		return exit.Failed
	}
	return exit.OK
}

func (c command) read(root string) ([]byte, error) {
	if c.config != "" {
		return os.ReadFile(c.config)
	}
	data, _, err := admission.Read(root, c.credentials, paths.At(root, paths.SystemCredentials))
	return data, err
}

// run looks at the host below root, once.
func (c command) run(ctx context.Context, root string) (check.Report, error) {
	data, err := c.read(root)
	if err != nil {
		return check.Report{}, err
	}
	settings, problems := config.Parse(data, config.ReadHost(root))
	prefix, err := installed.Prefix()
	if err != nil {
		prefix = paths.DefaultRoot // it is only looked at
	}
	h, slots, done := thisHost(ctx, root, prefix, settings)
	defer done()
	all := append(checks(h, settings), remote.Configuration(settings, problems), h.Deployment(slots, data))
	results := check.Run(ctx, all, check.Plan{Limit: limit})
	ignore := c.ignore
	if settings != nil {
		ignore = append(ignore, settings.PreflightIgnore...)
	}
	return check.NewReport(results, ignore, c.failOnWarnings), nil
}
