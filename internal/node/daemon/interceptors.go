package daemon

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/berthnet/berth/internal/node/daemon/cnierror"
	"github.com/berthnet/berth/internal/rpc"
)

// callLimit bounds a call of which the caller set no bound, or a later one.
// An ADD may also wait for an address and for parts.
const callLimit = 60 * time.Second

// observe is around every call of the plugin: it enforces a deadline, turns a
// panic into an error, makes every error a Failure, and logs and counts.
func (d *Daemon) observe(ctx context.Context, verb string, req any, handle grpc.UnaryHandler) (reply any, err error) {
	limit := callLimit
	if verb == "Add" {
		limit += d.attachments.acquirer.longestWait()
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begun := time.Now()
	reply, err = recovered(ctx, d, verb, req, handle)
	took := time.Since(begun)
	if err == nil {
		d.Metrics.observeCall(verb, "success", "", took)
		return reply, nil
	}
	f := cnierror.Of(err)
	if f.Code == cnierror.CodeRecord {
		d.writable.failed.Set()
	}
	d.Metrics.observeCall(verb, "failure", f.Reason, took)
	args := []any{"verb", strings.ToUpper(verb), "took", took.Round(time.Microsecond), "code", f.Code, "reason", f.Reason, "err", f}
	if a, ok := req.(interface{ GetAttachment() *rpc.Attachment }); ok {
		args = append(args, "container", a.GetAttachment().GetContainerId(), "interface", a.GetAttachment().GetIfName())
	}
	d.Log.Warn("call failed", args...)
	return nil, f
}

// verbOf is the CNI verb of a gRPC method; empty for other services, which are
// health checks.
func verbOf(fullMethod string) string {
	verb, _ := strings.CutPrefix(fullMethod, "/"+rpc.Node_ServiceDesc.ServiceName+"/")
	if verb == fullMethod {
		return ""
	}
	return verb
}

// recovered handles a call and returns a panic as an error.
func recovered(ctx context.Context, d *Daemon, verb string, req any, handle grpc.UnaryHandler) (reply any, err error) {
	defer func() {
		if p := recover(); p != nil {
			d.Log.Error("panic in a call", "verb", verb, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			f := cnierror.Of(fmt.Errorf("panic: %v", p))
			f.Reason = "panic"
			reply, err = nil, f
		}
	}()
	return handle(ctx, req)
}
