// Package vpclab is a VPC on one machine, for tests, the demo and development.
// Serve starts its two HTTP services, the EC2 API and the instance metadata
// service, on loopback ports within the calling process; any number of labs
// may run side by side.
package vpclab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/berthnet/berth/internal/vpclab/ec2"
	"github.com/berthnet/berth/internal/vpclab/imds"
	"github.com/berthnet/berth/internal/vpclab/spec"
	"github.com/berthnet/berth/internal/vpclab/vpc"
)

// Lab is a served cloud.
type Lab struct {
	Cloud  *vpc.Cloud
	EC2URL string // the endpoint URL of the EC2 API
	// AccessKeyID and SecretAccessKey are the spec's first static key.
	AccessKeyID, SecretAccessKey string

	mu      sync.Mutex // guards all below
	closed  bool
	servers []*http.Server
	imds    map[string]string // metadata URLs by instance ID
}

// Serve makes the cloud of a spec and serves it on loopback ports of the
// system's choice. Close it when done.
func Serve(s spec.Spec, opts ...vpc.Option) (*Lab, error) {
	cloud, err := vpc.New(s, opts...)
	if err != nil {
		return nil, err
	}
	key := cloud.Spec().AccessKeys[0]
	l := &Lab{Cloud: cloud, AccessKeyID: key.ID, SecretAccessKey: key.Secret, imds: map[string]string{}}
	if l.EC2URL, err = l.listen("127.0.0.1:0", ec2.Handler(cloud)); err != nil {
		cloud.Close()
		return nil, err
	}
	return l, nil
}

// Credentials gives the static key, as an aws.CredentialsProvider.
func (l *Lab) Credentials() aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: l.AccessKeyID, SecretAccessKey: l.SecretAccessKey, Source: "vpclab"}, nil
	})
}

// IMDSURL is the endpoint URL of the metadata service as one instance, named
// by ID or name, sees it. The service starts with the first call; the URL is
// empty when no port is to be had or the lab is closed.
func (l *Lab) IMDSURL(instance string) string {
	id := l.Cloud.InstanceID(instance)
	l.mu.Lock()
	defer l.mu.Unlock()
	if url, ok := l.imds[id]; ok {
		return url
	}
	url, err := l.listenLocked("127.0.0.1:0", imds.Handler(l.Cloud, func(*http.Request) (string, bool) { return id, true }))
	if err == nil {
		l.imds[id] = url
	}
	return url
}

// listen serves h at an address and returns its URL.
func (l *Lab) listen(addr string, h http.Handler) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.listenLocked(addr, h)
}

func (l *Lab) listenLocked(addr string, h http.Handler) (string, error) {
	if l.closed {
		return "", errors.New("serve lab: closed")
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return "", fmt.Errorf("serve lab: %w", err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	l.servers = append(l.servers, s)
	go func() { _ = s.Serve(ln) }()
	return "http://" + ln.Addr().String(), nil
}

// Close ends the lab's services and timers.
func (l *Lab) Close() {
	l.mu.Lock()
	l.closed = true
	servers := l.servers
	l.mu.Unlock()
	for _, s := range servers {
		_ = s.Close()
	}
	l.Cloud.Close()
}
