package aws

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	smithymw "github.com/aws/smithy-go/middleware"

	"github.com/berthnet/berth/internal/clock"
	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/retry"
)

// Pauses between attempts while the metadata service does not reply.
const (
	metadataPause    = 250 * time.Millisecond
	metadataMaxPause = 2 * time.Second
	metadataMax      = 64 << 10 // bytes of a reply; real ones have at most a few hundred
)

// Metadata is the instance metadata service, in version 2 with tokens; the
// SDK falls back to version 1 where tokens are not served.
type Metadata struct {
	api     *imds.Client
	timeout time.Duration
}

var _ cloud.Metadata = (*Metadata)(nil)

// NewMetadata returns a client of the metadata service. Of o it uses
// IMDSEndpoint, HTTPClient, MetadataTimeout, Logger and UserAgent.
func NewMetadata(o Options) *Metadata {
	o = o.withDefaults()
	return &Metadata{
		api: imds.New(imds.Options{
			Endpoint:   o.IMDSEndpoint,
			HTTPClient: o.HTTPClient,
			Logger:     o.sdkLogger(),
			// Metadata repeats attempts itself: it distinguishes a service that is coming up from
			// one that refuses.
			Retryer:    sdk.NopRetryer{},
			APIOptions: []func(*smithymw.Stack) error{middleware.AddUserAgentKeyValue(o.agent()), boundAnswers(metadataMax, metadataMax)},
		}),
		timeout: o.MetadataTimeout,
	}
}

// Identity implements cloud.Metadata. It waits up to Options.MetadataTimeout for the metadata service to
// come up. Errors name the unreadable path; their class is Transient, or Permission if the service is
// disabled for the instance.
func (m *Metadata) Identity(ctx context.Context) (cloud.Identity, error) {
	ctx, cancel := m.deadline(ctx)
	defer cancel()
	r := &metadataReading{m: m, ctx: ctx}
	id := cloud.Identity{
		InstanceID:   r.text("instance-id"),
		InstanceType: r.text("instance-type"),
		Region:       r.text("placement/region"),
		Zone:         r.text("placement/availability-zone"),
		PrimaryMAC:   r.mac("mac"),
	}
	nic := "network/interfaces/macs/" + id.PrimaryMAC.String() + "/"
	id.VPCID = r.text(nic + "vpc-id")
	id.SubnetID = r.text(nic + "subnet-id")
	own := r.own(nic)
	blocks, four := nic+"vpc-ipv6-cidr-blocks", optional
	if own.Is4() {
		id.PrimaryIPv4, blocks, four = own, nic+"vpc-ipv4-cidr-blocks", required
	}
	id.VPCCIDRs = append(r.prefixes(nic+"vpc-ipv4-cidr-blocks", four), r.prefixes(nic+"vpc-ipv6-cidr-blocks", optional)...)
	if has := func(p netip.Prefix) bool { return p.Contains(own) }; r.err == nil && !slices.ContainsFunc(id.VPCCIDRs, has) {
		r.bad(blocks, fmt.Sprint(id.VPCCIDRs), "one with the instance's "+own.String())
	}
	if r.err != nil {
		return cloud.Identity{}, r.err
	}
	return id, nil
}

// region reads only the region of the instance.
func (m *Metadata) region(ctx context.Context) (string, error) {
	ctx, cancel := m.deadline(ctx)
	defer cancel()
	r := &metadataReading{m: m, ctx: ctx}
	region := r.text("placement/region")
	return region, r.err
}

// deadline bounds a reading. It does not set a deadline in the context, because the SDK then drops its
// own time-out of five seconds a reply.
func (m *Metadata) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	end := time.AfterFunc(m.timeout, func() { cancel(fmt.Errorf("gave up after %v: %w", m.timeout, context.DeadlineExceeded)) })
	return ctx, func() { end.Stop(); cancel(nil) }
}

// presence reports whether a path may be absent.
type presence bool

const (
	required presence = true
	optional presence = false
)

// metadataReading reads paths until the first error.
type metadataReading struct {
	m   *Metadata
	ctx context.Context
	err error
}

func (r *metadataReading) fail(path string, class cloud.Class, err error) {
	if r.err == nil {
		r.err = &cloud.Error{Class: class, Op: "GetMetadata", Err: fmt.Errorf("instance metadata %s: %w", path, err)}
	}
}

func (r *metadataReading) bad(path, value, expected string) {
	r.fail(path, cloud.Transient, &badAnswer{fmt.Errorf("%q: expected %s", value, expected)})
}

// get reads one path, and retries while the service is coming up.
func (r *metadataReading) get(path string, need presence) (body string) {
	if r.err != nil {
		return ""
	}
	class := cloud.Transient
	err := retry.Until(r.ctx, clock.Real{}, retry.Policy{First: metadataPause, Most: metadataMaxPause}, func(ctx context.Context) (err error) {
		body, err = r.m.once(ctx, path)
		switch status := statusOf(err); {
		case err == nil, status == http.StatusNotFound && need == optional:
			return nil
		case status == http.StatusForbidden:
			class = cloud.Permission
			return retry.Stop(fmt.Errorf("the metadata service is disabled for this instance (HttpEndpoint): %w", err))
		case !r.again(err, status):
			class = cloud.Permission
			return retry.Stop(err)
		}
		return err
	})
	if err != nil {
		r.fail(path, class, err)
	}
	return body
}

// again reports whether an error may be temporary. A required path may appear while the instance boots.
func (r *metadataReading) again(err error, status int) bool {
	if status == 0 {
		return !strings.Contains(err.Error(), "access disabled to EC2 IMDS")
	}
	return status == http.StatusNotFound || status == http.StatusUnauthorized || status == http.StatusTooManyRequests || status >= 500
}

func (m *Metadata) once(ctx context.Context, path string) (string, error) {
	out, err := m.api.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
	if err != nil {
		return "", err
	}
	defer func() { _ = out.Content.Close() }()
	body, err := io.ReadAll(out.Content)
	return strings.TrimSpace(string(body)), err
}

func (r *metadataReading) text(path string) string {
	s := r.get(path, required)
	if s == "" || strings.ContainsAny(s, "<> \t\r\n") {
		r.bad(path, s, "one word")
	}
	return s
}

func (r *metadataReading) mac(path string) net.HardwareAddr {
	s := r.get(path, required)
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 {
		r.bad(path, s, "a MAC address")
		return nil
	}
	return mac
}

// own is the instance's primary IPv4 address or, in an IPv6-only subnet, its first IPv6 address. The
// subnet counts as IPv6-only if there is an IPv6 address and three IPv4 paths are missing, because single
// paths may be late while an instance boots.
func (r *metadataReading) own(nic string) netip.Addr {
	const four, six = "local-ipv4", "ipv6"
	for _, path := range []string{four, nic + "local-ipv4s", nic + "subnet-ipv4-cidr-block"} {
		if r.get(path, optional) != "" {
			return r.addr(ipv4, four)
		}
	}
	if r.err == nil && r.get(six, optional) == "" {
		return r.addr(ipv4, four) // which waits
	}
	return r.addr(ipv6, six)
}

func (r *metadataReading) addr(f family, path string) netip.Addr {
	s := r.get(path, required)
	a, ok := f.addr(s)
	if !ok {
		r.bad(path, s, "an "+f.name+" address")
	}
	return a
}

func (r *metadataReading) prefixes(path string, need presence) []netip.Prefix {
	list := strings.Fields(r.get(path, need))
	if len(list) == 0 && need == required {
		r.bad(path, "", "at least one prefix")
	}
	var out []netip.Prefix
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil || p != p.Masked() || p.Addr().Is4In6() {
			r.bad(path, s, "a prefix without host bits")
			return nil
		}
		if !isVPCBlock(p) {
			r.bad(path, s, "a size that a VPC can have")
			return nil
		}
		out = append(out, p)
	}
	return out
}

// isVPCBlock reports whether a CIDR block has a size that VPCs allow: IPv4 from /16 to /28, IPv6 from
// /44 to /60 (VPC user guide, "VPC CIDR blocks"). With a larger block, packets of pods to destinations
// outside the VPC would not be translated.
func isVPCBlock(p netip.Prefix) bool {
	if p.Addr().Is4() {
		return p.Bits() >= 16 && p.Bits() <= 28
	}
	return p.Bits() >= 44 && p.Bits() <= 60
}
