package policytable

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/google/nftables"

	"github.com/berthnet/berth/internal/kernel/nft"
)

// Forget makes the next Apply replace the whole table, because other software may have changed it.
func (t *Table) Forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.have = nil
}

// There reports whether the kernel has a table of this name.
func (t *Table) There() (bool, error) {
	conn, err := t.open()
	if err != nil {
		return false, err
	}
	return nft.Table{Family: nftables.TableFamilyINet, Name: Name}.There(conn)
}

// Watch sends changes of the table by programs with another name until ctx ends. It merges consecutive changes. An empty text means
// that changes may have been missed. The channel is closed when watching fails.
func (t *Table) Watch(ctx context.Context) (<-chan string, error) {
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		return nil, fmt.Errorf("find the name by which the kernel reports this program's changes: %w", err)
	}
	s, err := nl.SubscribeAt(t.ns, netns.None(), unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	w := watcher{process: strings.TrimSpace(string(name)), changes: make(chan string, 1)}
	t.subscription.begin(s)
	stop := context.AfterFunc(ctx, func() { t.subscription.end(s) })
	go func() {
		defer close(w.changes)
		defer t.subscription.end(s)
		defer stop()
		for {
			messages, from, err := s.Receive()
			switch {
			case ctx.Err() != nil, err != nil && !errors.Is(err, unix.ENOBUFS):
				return
			case err != nil:
				w.pending = ""
				w.tell("")
			case from.Pid == nl.PidKernel:
				for _, m := range messages {
					w.message(m.Header.Type, m.Data)
				}
			}
		}
	}()
	return w.changes, nil
}

// subscription is the socket of Watch. It filters messages about changes by the table's own connection: there are several for each
// starting pod and one for each set element, and reading them would slow down these changes.
type subscription struct {
	mu     sync.Mutex        // guards the fields below; held while the socket is configured or closed
	socket *nl.NetlinkSocket // nil if nobody watches
	own    uint32            // port ID of the table's connection, part of each message about its changes; 0 if there is none
}

// begin registers the socket of a Watch.
func (s *subscription) begin(socket *nl.NetlinkSocket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.socket = socket
	s.filter()
}

// end closes the socket of a Watch.
func (s *subscription) end(socket *nl.NetlinkSocket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.socket == socket {
		s.socket = nil
	}
	socket.Close()
}

// ignore sets the port ID of the table's connection before it changes anything, or 0 before the connection is closed.
func (s *subscription) ignore(own uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = own
	s.filter()
}

// filter installs the filter in the kernel, with mu held. Without the filter, the kernel sends all messages, and the program's name
// identifies its own changes.
func (s *subscription) filter() {
	if s.socket == nil {
		return
	}
	fd := s.socket.GetFd()
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	if s.own == 0 {
		return
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 12}, // nlmsg_pid, of the first of several messages of a transaction
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, s.own))},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: math.MaxUint32},
	}
	_ = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// watcher turns messages of the kernel into changes.
type watcher struct {
	process string
	changes chan string
	pending string // change in the current transaction
}

func (w *watcher) tell(what string) {
	select {
	case w.changes <- what:
	default: // an earlier change has not been received yet
	}
}

// whatChanged describes the messages about a table's content. The table's name is attribute 1 in all of them.
var whatChanged = map[uint16]string{
	unix.NFT_MSG_NEWTABLE: "the table was changed", unix.NFT_MSG_DELTABLE: "the table was removed",
	unix.NFT_MSG_NEWCHAIN: "a chain was added", unix.NFT_MSG_DELCHAIN: "a chain was removed",
	unix.NFT_MSG_NEWRULE: "a rule was added", unix.NFT_MSG_DELRULE: "a rule was removed",
	unix.NFT_MSG_DELSET:     "a set was removed",
	unix.NFT_MSG_NEWSETELEM: "elements of a set were added", unix.NFT_MSG_DELSETELEM: "elements of a set were removed",
}

// message processes one message. The kernel names the program only at the end of a transaction, so changes are kept until then.
func (w *watcher) message(kind uint16, data []byte) {
	if kind>>8 != unix.NFNL_SUBSYS_NFTABLES || len(data) < 4 {
		return
	}
	attrs, err := netlink.UnmarshalAttributes(data[4:])
	if err != nil {
		return
	}
	text := func(kind uint16) string {
		i := slices.IndexFunc(attrs, func(a netlink.Attribute) bool { return a.Type == kind })
		if i < 0 {
			return ""
		}
		return strings.TrimRight(string(attrs[i].Data), "\x00")
	}
	switch {
	case kind&0xff == unix.NFT_MSG_NEWGEN:
		if w.pending != "" && text(unix.NFTA_GEN_PROC_NAME) != w.process {
			w.tell(w.pending)
		}
		w.pending = ""
	case w.pending == "" && data[0] == unix.NFPROTO_INET && text(unix.NFTA_TABLE_NAME) == Name:
		w.pending = whatChanged[kind&0xff]
	}
}
