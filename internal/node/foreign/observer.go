package foreign

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/kernel/datapath"
	"github.com/berthnet/berth/internal/node/attachment"
	"github.com/berthnet/berth/internal/statefile"
)

// Options of an Observer.
type Options struct {
	Checkpoints string                   // folder of the Amazon VPC CNI's checkpoint and socket
	ConfDir     string                   // folder of Configs
	Netns       string                   // folder with the pods' network namespaces
	Configs     func() ([]Config, error) // network configurations of the node, as the runtime sorts them
	Clock       clock.Clock
	Log         *slog.Logger
	// Answers returns which other daemons run; if nil, the node's sockets are checked.
	Answers func(ctx context.Context) map[System]bool
}

// Observer observes other software on the node.
type Observer struct {
	options Options

	mu         sync.Mutex // guards the fields below; never held during I/O
	seen       marks      // before the last Observe
	file       identity   // of the checkpoint read last
	checkpoint Checkpoint
	said       string // last logged problem with the checkpoint
	answers    map[System]bool
	at         time.Time // when answers were read
}

// NewObserver returns an Observer that has read nothing yet.
func NewObserver(o Options) *Observer {
	if o.Answers == nil {
		o.Answers = answers
	}
	observer := &Observer{options: o}
	observer.seen = observer.marks()
	observer.seen.checkpoint = identity{} // an existing one is new
	return observer
}

// Observation is what an Observer saw.
type Observation struct {
	Holders  []Holder
	Networks []Network
	Configs  []Config
}

// identity changes with each replacement of a file. It is zero if there is no file.
type identity struct {
	inode uint64
	size  int64
	time  time.Time
}

func identify(path string) identity {
	info, err := os.Stat(path)
	if err != nil {
		return identity{}
	}
	id := identity{size: info.Size(), time: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		id.inode = st.Ino
	}
	return id
}

// marks change when the Amazon VPC CNI assigns or releases addresses, when its daemon starts, and when a network configuration is
// added or removed.
type marks struct{ checkpoint, folder, configurations identity }

func (o *Observer) path() string { return filepath.Join(o.options.Checkpoints, CheckpointName) }

func (o *Observer) marks() marks {
	return marks{identify(o.path()), identify(o.options.Checkpoints), identify(o.options.ConfDir)}
}

// Changed reports whether, since the last Observe, another daemon has assigned or released addresses, has started, or has
// changed the node's network configurations. It takes microseconds.
func (o *Observer) Changed() bool {
	now := o.marks()
	o.mu.Lock()
	defer o.mu.Unlock()
	return now != o.seen
}

// answersEvery is the interval of searches for daemons of other pod networks. A change of ipamd's folder also triggers one.
const answersEvery = 30 * time.Second

// Observe reads the state of other software on the node. routes are the kernel's, and records are Berth's.
func (o *Observer) Observe(ctx context.Context, routes []datapath.ForeignRoute, records []attachment.Record) Observation {
	now := o.marks()
	o.mu.Lock()
	restarted := now.folder != o.seen.folder
	o.seen = now
	o.mu.Unlock()
	checkpoint, answers := o.readCheckpoint(), o.readAnswers(ctx, restarted)
	containers, spaces := map[string]bool{}, map[datapath.NetnsID]bool{}
	for _, rec := range records {
		containers[rec.Key.ContainerID] = true
		spaces[datapath.NetnsID{Dev: rec.Netns.Dev, Inode: rec.Netns.Inode}] = true
	}
	var others *namespaces // opened on first use
	defer func() { others.close() }()
	e := Evidence{
		Now: o.options.Clock.Now(), Routes: routes, Checkpoint: checkpoint, Answers: answers,
		InPods: func(a netip.Addr) bool {
			if others == nil {
				others = openNamespaces(o.options.Netns, spaces)
			}
			return others.have(a)
		},
		Adopted: func(id string) bool { return containers[id] },
	}
	out := Observation{Holders: Holders(e)}
	out.Networks = Networks(answers, out.Holders)
	configs, err := o.options.Configs()
	if err != nil {
		o.options.Log.Warn("reading the node's network configurations failed", "err", err)
	}
	out.Configs = configs
	return out
}

// readCheckpoint reads the checkpoint if it has changed. If that fails, the previous content stays: ipamd replaces the file at
// once, and without its content, Berth would assign other pods' addresses.
func (o *Observer) readCheckpoint() Checkpoint {
	o.mu.Lock()
	file, last := o.file, o.checkpoint
	o.mu.Unlock()
	now := identify(o.path())
	if now == file {
		return last
	}
	next, said := Checkpoint{}, ""
	data, err := statefile.Read(o.path())
	if err == nil {
		next, err = ParseCheckpoint(data)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		if said = err.Error(); next.Version == "" {
			next = last
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.file, o.checkpoint = now, next
	if said != "" && said != o.said {
		o.options.Log.Warn("the checkpoint of the Amazon VPC CNI cannot be read completely", "file", o.path(), "err", err)
	}
	o.said = said
	return next
}

func (o *Observer) readAnswers(ctx context.Context, again bool) map[System]bool {
	now := o.options.Clock.Now()
	o.mu.Lock()
	last, at := o.answers, o.at
	o.mu.Unlock()
	if last != nil && !again && now.Sub(at) < answersEvery {
		return last
	}
	next := o.options.Answers(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answers, o.at = next, now
	return next
}

// Where daemons listen, in the node's network namespace.
const ipamdAddress = "127.0.0.1:50051" // before version 1.22

var daemonSockets = map[string]System{"/aws-node/ipamd.sock": AmazonVPCCNI, "/coild.sock": Coil, "/cilium/cilium.sock": Cilium}

// answers returns the systems with a listening socket on the node.
func answers(ctx context.Context) map[System]bool {
	found := map[System]bool{}
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", ipamdAddress); err == nil {
		_ = conn.Close()
		found[AmazonVPCCNI] = true
	}
	// Sockets of the network namespace, independent of the file system that berthd's container sees.
	if data, err := os.ReadFile("/proc/net/unix"); err == nil {
		for system := range listening(data) {
			found[system] = true
		}
	}
	return found
}

// accepts is the flag of a listening socket in /proc/net/unix (__SO_ACCEPTCON).
const accepts = "00010000"

// listening returns the systems with a listening socket in the text of /proc/net/unix.
func listening(text []byte) map[System]bool {
	found := map[System]bool{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 8 || fields[3] != accepts {
			continue
		}
		for suffix, system := range daemonSockets {
			if strings.HasSuffix(fields[7], suffix) {
				found[system] = true
			}
		}
	}
	return found
}
