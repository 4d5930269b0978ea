package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	lib "github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/plug"
	"github.com/berthnet/berth/internal/retry"
)

// Client is a client of one OVSDB server. It connects on first use and after each loss of the
// connection. All methods are safe for concurrent use.
type Client struct {
	endpoint string
	rows     model.ClientDBModel
	log      *slog.Logger
	dialing  plug.Turns

	mu       sync.Mutex
	conn     client.Client            // guarded by mu; nil without a connection
	waiting  map[string]chan struct{} // guarded by mu; by link, closed when its Interface changes or a connection is lost or made
	watchers map[*watcher]bool        // guarded by mu, with what they point to
	closed   bool                     // guarded by mu
	failure  error                    // guarded by mu; of the last attempt to connect
}

// probe is the interval of the liveness probes of an idle connection, and their timeout.
const probe = 5 * time.Second

// New returns a client of the server at an endpoint, such as "unix:/run/openvswitch/db.sock" or
// "tcp:127.0.0.1:6640". It does not connect yet.
func New(endpoint string, log *slog.Logger) (*Client, error) {
	kind, rest, _ := strings.Cut(endpoint, ":")
	if (kind != "unix" || !strings.HasPrefix(rest, "/")) && (kind != "tcp" || rest == "") {
		return nil, fmt.Errorf("OVSDB endpoint: %q: want unix:/PATH or tcp:HOST:PORT", endpoint)
	}
	rows, err := schema()
	if err != nil {
		return nil, err
	}
	return &Client{endpoint: endpoint, rows: rows, log: log, waiting: map[string]chan struct{}{}, watchers: map[*watcher]bool{}}, nil
}

// Close closes the connection. All later calls fail.
func (c *Client) Close() {
	c.mu.Lock()
	conn := c.conn
	c.conn, c.closed = nil, true
	c.wake("")
	c.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// wake wakes waits for a link, or for all links if it is empty. The caller holds mu.
func (c *Client) wake(link string) {
	for name, waiting := range c.waiting {
		if link == "" || name == link {
			close(waiting)
			delete(c.waiting, name)
		}
	}
}

// next returns a channel that is closed when a link's Interface changes, or may have changed.
func (c *Client) next(link string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[link] == nil {
		c.waiting[link] = make(chan struct{})
	}
	return c.waiting[link]
}

// current returns the current connection, or nil.
func (c *Client) current() (client.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("%w: the client is closed", plug.ErrUnreachable)
	}
	return c.conn, nil
}

// connection returns the current connection, or retries to connect until ctx ends. Errors:
// plug.ErrUnreachable.
func (c *Client) connection(ctx context.Context) (client.Client, error) {
	if conn, err := c.current(); err != nil || conn != nil {
		return conn, err
	}
	done, err := c.dialing.Take(ctx, "the connection")
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.failure != nil { // of the call that is connecting
			err = c.failure
		}
		return nil, fmt.Errorf("%w: %s: %w", plug.ErrUnreachable, c.endpoint, err)
	}
	defer done()
	var conn client.Client
	var last error // of an attempt: it tells more than the end of ctx
	err = retry.Until(ctx, clock.Real{}, retry.Policy{First: 50 * time.Millisecond, Most: 2 * time.Second}, func(ctx context.Context) (err error) {
		if conn, err = c.current(); err != nil {
			return retry.Stop(err)
		} else if conn != nil {
			return nil
		}
		conn, err = c.dial(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err == nil || ctx.Err() == nil { // otherwise the deadline was too short to tell about the server
			c.failure, last = err, err
		}
		return err
	})
	if err != nil && ctx.Err() != nil && last != nil {
		err = last
	}
	if err != nil && !errors.Is(err, plug.ErrUnreachable) {
		err = fmt.Errorf("%w: %s: %w", plug.ErrUnreachable, c.endpoint, err)
	}
	return conn, err
}

var errLost = errors.New("the connection was lost right after it was made")

func (c *Client) dial(ctx context.Context) (client.Client, error) {
	quiet := logr.Discard()
	conn, err := client.NewOVSDBClient(c.rows, client.WithEndpoint(c.endpoint), client.WithLogger(&quiet))
	if err != nil {
		return nil, err
	}
	if err := conn.Connect(ctx); err != nil {
		return nil, err
	}
	rows := conn.Cache()
	if rows == nil { // the connection was lost at once, and the library dropped the cache
		conn.Close()
		return nil, errLost
	}
	rows.AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc:    func(_ string, m model.Model) { c.rowChanged(nil, m) },
		UpdateFunc: func(_ string, before, m model.Model) { c.rowChanged(before, m) },
		DeleteFunc: func(_ string, m model.Model) { c.rowChanged(m, nil) },
	})
	i := &ifaceRow{}
	if _, err := conn.Monitor(ctx, conn.NewMonitor(client.WithTable(i, &i.Name, &i.ExternalIDs, &i.OFPort, &i.Error))); err != nil {
		conn.Close()
		return nil, fmt.Errorf("watch interfaces: %w", err)
	}
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.conn = conn
		c.wake("")
	}
	c.mu.Unlock()
	if closed {
		conn.Close()
		return nil, errors.New("the client is closed")
	}
	go c.watch(context.WithoutCancel(ctx), conn)
	c.log.Debug("connected to OVSDB", "endpoint", c.endpoint)
	return conn, nil
}

// watch drops a connection that is lost. The library reports a loss only to those who listen at
// that moment, and does not report a server that hangs, so watch also probes the server.
func (c *Client) watch(ctx context.Context, conn client.Client) {
	ask := time.NewTicker(probe)
	defer ask.Stop()
	for {
		select {
		case <-conn.DisconnectNotify():
			c.drop(conn)
			return
		case <-ask.C:
			soon, cancel := context.WithTimeout(ctx, probe)
			err := conn.Echo(soon)
			cancel()
			if err != nil {
				c.drop(conn)
				return
			}
		}
		if now, err := c.current(); err != nil || now != conn {
			return
		}
	}
}

// transact runs one transaction. If the connection is lost, it retries queries on a new one. It
// does not retry changes, which may have been made, and returns plug.ErrUnreachable. If the server
// rejects the transaction, the error has its message.
func (c *Client) transact(ctx context.Context, ops ...lib.Operation) ([]lib.OperationResult, error) {
	for {
		conn, err := c.connection(ctx)
		if err != nil {
			return nil, err
		}
		results, err := conn.Transact(ctx, ops...)
		if err != nil && ctx.Err() == nil {
			c.drop(conn)
			if !changes(ops) {
				continue
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", plug.ErrUnreachable, c.endpoint, err)
		}
		if each, err := lib.CheckOperationResults(results, ops); err != nil {
			return nil, fmt.Errorf("OVSDB rejected the transaction: %w%s", err, details(each))
		}
		return results, nil
	}
}

// changes reports whether a transaction may have changed something if its reply was lost. The
// caller has to query again then.
func changes(ops []lib.Operation) bool {
	for _, op := range ops {
		if op.Op != lib.OperationSelect {
			return true
		}
	}
	return false
}

func details(errs []lib.OperationError) string {
	var b strings.Builder
	for _, e := range errs {
		b.WriteString(": " + e.Error())
	}
	return b.String()
}

// drop forgets a lost connection.
func (c *Client) drop(conn client.Client) {
	c.mu.Lock()
	mine := c.conn == conn
	if mine {
		c.conn = nil
		c.wake("")
		c.tell(Change{})
	}
	c.mu.Unlock()
	if mine {
		c.log.Warn("lost the connection to OVSDB; reconnecting on next use", "endpoint", c.endpoint)
		conn.Close()
	}
}
