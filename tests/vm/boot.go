package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"sync"
	"time"

	"unbounded/tests/host"
	"unbounded/tests/vm/wire"
)

// boot is one run of QEMU, from power on to off.
type boot struct {
	qemu  *exec.Cmd
	stop  context.CancelFunc
	ended chan struct{} // closed with the end of QEMU
	conn  net.Conn      // to the agent
	up    chan struct{} // has a value once the agent is there
	qmp   *monitor

	mu      sync.Mutex
	last    int
	waiting map[int]chan wire.Answer
}

// power starts QEMU and waits for its end of the channel.
func (v *VM) power(ctx context.Context, more []string) (*boot, error) {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	b := &boot{
		stop: stop, ended: make(chan struct{}), up: make(chan struct{}, 1), waiting: map[int]chan wire.Answer{},
		qemu: v.Ground.Outside(life, append(v.arguments(), more...)...),
	}
	log := &tail{}
	b.qemu.Stderr = log
	commands, inErr := b.qemu.StdinPipe()
	events, outErr := b.qemu.StdoutPipe()
	if err := errors.Join(inErr, outErr, b.qemu.Start()); err != nil {
		stop()
		return nil, err
	}
	b.qmp = newMonitor(commands, events)
	go func() { <-b.qmp.closed; _ = b.qemu.Wait(); close(b.ended) }()
	accepted := make(chan error, 1)
	go func() {
		var err error
		b.conn, err = v.agent.Accept()
		accepted <- err
	}()
	select {
	case err := <-accepted:
		if err != nil {
			b.kill()
			return nil, err
		}
	case <-b.ended:
		return nil, fmt.Errorf("QEMU has ended: %s", log)
	}
	go b.listen()
	return b, nil
}

// kill ends QEMU with no word to anybody, and waits until it is gone.
func (b *boot) kill() {
	b.stop()
	<-b.ended
	if b.conn != nil {
		_ = b.conn.Close()
	}
}

// listen takes the answers of the agent.
func (b *boot) listen() {
	answers := json.NewDecoder(bufio.NewReader(b.conn))
	for {
		var a wire.Answer
		if answers.Decode(&a) != nil {
			return
		}
		if a.ID == 0 {
			select {
			case b.up <- struct{}{}:
			default:
			}
			continue
		}
		b.mu.Lock()
		waiting := b.waiting[a.ID]
		delete(b.waiting, a.ID)
		b.mu.Unlock()
		if waiting != nil {
			waiting <- a
		}
	}
}

// hello waits for the agent.
func (b *boot) hello(ctx context.Context) error {
	select {
	case <-b.up:
		return nil
	case <-b.ended:
		return errors.New("the machine went off by itself")
	case <-ctx.Done():
		return fmt.Errorf("wait for the agent: %w", ctx.Err())
	}
}

// run has the agent run a command, and waits for its end.
func (b *boot) run(ctx context.Context, script, input string) (host.Result, error) {
	began := time.Now()
	answer, err := b.send(script, input)
	if err != nil {
		return host.Result{}, err
	}
	select {
	case a := <-answer:
		return host.Result{Out: a.Out, Err: a.Err, Code: a.Code, Took: time.Since(began)}, nil
	case <-b.ended:
		return host.Result{}, errors.New("the machine went off")
	case <-ctx.Done():
		return host.Result{}, ctx.Err()
	}
}

// send asks the agent to run a command.
func (b *boot) send(script, input string) (<-chan wire.Answer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last++
	line, err := json.Marshal(wire.Request{ID: b.last, Script: script, Input: input})
	if err != nil {
		return nil, err
	}
	answer := make(chan wire.Answer, 1)
	b.waiting[b.last] = answer
	_, err = b.conn.Write(append(line, '\n'))
	return answer, err
}

// tail keeps the last of what a program says.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (l *tail) Write(data []byte) (int, error) {
	const enough = 4096
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, data...)
	l.text = l.text[max(0, len(l.text)-enough):]
	return len(data), nil
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}
