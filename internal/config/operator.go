package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/berthnet/berth/internal/ec2/cloud/pace"
	"github.com/berthnet/berth/internal/vpcport/lanes"
)

// Operator contains all settings of berth-operator, parsed and validated, by feature.
type Operator struct {
	OperatorCluster
	LeaderSettings
	CloudSettings
	OperatorNodes
	OperatorPools
	OperatorPorts
	OperatorEgress
	OperatorPolicies
	OperatorWatching
	LogSettings
	Given
	EC2Limits map[string]pace.Limit // by action
}

// OperatorCluster defines the cluster and the features of the operator.
type OperatorCluster struct {
	ClusterName string
	Kubeconfig  string   // empty: in the cluster
	IPAM        []string // some of IPAMENIOperator, IPAMPool and IPAMPort; empty for egress or network policies only
}

// LeaderSettings are the settings of leader election.
type LeaderSettings struct {
	LeaderElect    bool
	LeaseNamespace string
	LeaseDuration  time.Duration
	RenewDeadline  time.Duration
	RetryPeriod    time.Duration
	PodName        string
}

// OperatorNodes define how nodes and their ENIs are managed.
type OperatorNodes struct {
	InstanceNodeTag    string // key of an EC2 tag; empty: none
	InstanceClusterTag Tag    // zero: none
	NodeGoneGrace      time.Duration
	AdoptENIs          []string
	ENITimes
}

// OperatorPools are the operator's settings of address pools.
type OperatorPools struct {
	BlockClaimGrace time.Duration
	DownNodeRelease time.Duration // 0: never
	NodeMaxPods     int           // maximum of pods in a node's quota of blocks; 0: no quota
}

// OperatorPorts are the operator's settings of VPC ports.
type OperatorPorts struct {
	VPCCalls      int // maximum of calls in flight to one endpoint
	UnplugGrace   time.Duration
	BranchCooling time.Duration
	WebhookAddr   string
	WebhookFrom   []netip.Prefix // clients in addition to the API server and nodes
	FirstIsPort   bool           // the first interface of pods with NICs is a port
}

// OperatorEgress are the operator's settings of egress.
type OperatorEgress struct {
	Egress      bool
	EgressImage string
	EgressPort  int // UDP
}

// OperatorPolicies are the operator's settings of network policies.
type OperatorPolicies struct {
	NetworkPolicies      bool
	NetworkPolicyAddr    string
	NetworkPolicyDaemons string // user name of the nodes' daemons
}

// OperatorWatching defines which information the operator serves.
type OperatorWatching struct {
	MetricsAddr string
	HealthAddr  string
	PprofAddr   string
	PlannerAddr string
}

// NewOperatorLoader registers a flag for every setting of berth-operator.
func NewOperatorLoader(flags *pflag.FlagSet) *Loader[Operator] {
	o := &Operator{}
	return newLoader(flags, o, operatorTable(o), o.finish)
}

// ownNamespace is the namespace of the program's pod; empty outside a cluster.
func ownNamespace() string {
	text, _ := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	return strings.TrimSpace(string(text))
}

// finish sets defaults that depend on the machine, and finds contradictions.
func (o *Operator) finish(given Given) []error {
	o.Given = given
	o.CloudSettings.finish()
	if o.PodName == "" {
		o.PodName, _ = os.Hostname()
	}
	if o.LeaseNamespace == "" {
		o.LeaseNamespace = cmp.Or(ownNamespace(), "kube-system")
	}
	if o.NetworkPolicyDaemons == "" {
		o.NetworkPolicyDaemons = "system:serviceaccount:" + o.LeaseNamespace + ":berthd"
	}
	return o.contradictions()
}

// renewJitter is the factor by which client-go may exceed retry-period between two attempts
// (leaderelection.JitterFactor).
const renewJitter = 1.2

func (o *Operator) contradictions() []error {
	out := wrongTogether([]contradiction{
		{len(o.IPAM) == 0 && !o.Egress && !o.NetworkPolicies,
			fmt.Sprintf("--ipam is empty: expected %s, %s, %s or several of them, or --egress or --network-policies", IPAMENIOperator, IPAMPool, IPAMPort)},
		{o.NetworkPolicies && o.NetworkPolicyAddr == "", "--network-policies needs --network-policy-address, where nodes reach this operator"},
		{o.EgressPort == 0, "--egress-port must be at least 1"},
		{o.Egress && o.EgressImage == "", "--egress needs --egress-image, the image of gateways"},
		{o.VPCCalls == 0, "--vpc-calls must be at least 1"},
		{slices.Contains(o.IPAM, IPAMPort) && strings.Contains(o.ClusterName, ":"),
			fmt.Sprintf("--cluster-name %q has a colon, which --ipam=port cannot have: the name is part of ports' device IDs, between colons", o.ClusterName)},
		{o.RenewDeadline > 0 && o.LeaseDuration <= o.RenewDeadline,
			fmt.Sprintf("--lease-duration %s must be longer than --renew-deadline %s: else two operators may lead at once", o.LeaseDuration, o.RenewDeadline)},
		{o.RetryPeriod > 0 && float64(o.RenewDeadline) <= renewJitter*float64(o.RetryPeriod),
			fmt.Sprintf("--renew-deadline %s must be longer than %g times --retry-period %s", o.RenewDeadline, renewJitter, o.RetryPeriod)},
		{o.LeaseDuration%time.Second != 0, "--lease-duration must be a whole number of seconds, as a Lease counts them"},
	})
	listeners := map[string]string{}
	for _, l := range []struct{ flag, address string }{
		{"metrics-address", o.MetricsAddr}, {"health-address", o.HealthAddr}, {"pprof-address", o.PprofAddr}, {"planner-address", o.PlannerAddr}, {"webhook-address", o.WebhookAddr},
		{"network-policy-address", o.NetworkPolicyAddr},
	} {
		if l.address == "" || strings.HasSuffix(l.address, ":0") {
			continue
		}
		if other, taken := listeners[l.address]; taken {
			out = append(out, fmt.Errorf("--%s and --%s are both %s", other, l.flag, l.address))
		}
		listeners[l.address] = l.flag
	}
	return out
}

// operatorTable lists every setting of berth-operator; parsing writes to o.
func operatorTable(o *Operator) []Setting {
	return rows([]group{
		{"Cluster", o.OperatorCluster.rows()},
		{"Leader election", o.LeaderSettings.rows()},
		{"Cloud", append(o.CloudSettings.rows(), Setting{
			Flag: "ec2-limits", Unit: "Action=calls per second/burst", parse: ec2Limits(&o.EC2Limits),
			Doc: "Rate limits of EC2 calls by action, separated by commas, such as AssignPrivateIpAddresses=5/50, in addition to those learned from EC2's throttling. Other actions have no limit."})},
		{"Nodes", o.OperatorNodes.rows()},
		{"Address pools", o.OperatorPools.rows()},
		{"VPC ports", o.OperatorPorts.rows()},
		{"Egress", o.OperatorEgress.rows()},
		{"Network policies", o.OperatorPolicies.rows()},
		{"Watching", append(o.OperatorWatching.rows(), o.LogSettings.rows()...)},
	})
}

func (o *OperatorCluster) rows() []Setting {
	return []Setting{
		{Flag: "cluster-name", Env: []string{"CLUSTER_NAME"}, Default: "default", parse: checked(&o.ClusterName, clusterName),
			Doc: "Name of the cluster. ENIs are tagged with it, and only ENIs with this tag are ever cleaned up, so clusters that share a VPC need different names."},
		{Flag: "ipam", Default: IPAMENIOperator, parse: list(&o.IPAM, among(IPAMENIOperator, IPAMPool, IPAMPort)),
			Doc: "Features of the operator, separated by commas: `eni-operator` (ENIs of nodes), `pool` (address pools) or `port` (pods' NICs that are ports of VPCs). Only the first needs EC2. Empty for --egress or --network-policies alone."},
		{Flag: "kubeconfig", parse: absolutePath(&o.Kubeconfig, true),
			Doc: "Kubeconfig file for the Kubernetes API. Default: the pod's service account."},
	}
}

func (o *LeaderSettings) rows() []Setting {
	return []Setting{
		{Flag: "leader-elect", Default: "true", bare: true, parse: boolean(&o.LeaderElect),
			Doc: "Work only while holding the Lease berth-operator, so that one of several operators is active and the others stand by."},
		{Flag: "leader-election-namespace", Env: []string{"POD_NAMESPACE"}, parse: text(&o.LeaseNamespace),
			Doc: "Namespace of that Lease. The operator's role permits it in the namespace of the chart's release. Default: the pod's own; outside a cluster, kube-system."},
		{Flag: "lease-duration", Default: "15s", parse: duration(&o.LeaseDuration, time.Second, time.Hour),
			Doc: "How long the Lease of a leader that vanished is valid. A leader that shuts down in order is replaced at once."},
		{Flag: "renew-deadline", Default: "10s", parse: duration(&o.RenewDeadline, 100*time.Millisecond, time.Hour),
			Doc: "How long a leader that cannot renew the Lease continues before it exits. It must be shorter than lease-duration."},
		{Flag: "retry-period", Default: "2s", parse: duration(&o.RetryPeriod, 50*time.Millisecond, time.Hour),
			Doc: "How often the operator renews the Lease, or tries to acquire it."},
		{Flag: "pod-name", Env: []string{"POD_NAME"}, parse: text(&o.PodName),
			Doc: "Prefix of this operator's identity in the Lease. Default: the host name."},
	}
}

func (o *OperatorNodes) rows() []Setting {
	return []Setting{
		{Flag: "instance-node-tag", Unit: "key", parse: checked(&o.InstanceNodeTag, tagKey),
			Doc: "Key of an EC2 tag of instances whose value is the name of the instance's Node. It links an instance to its Node where Nodes have no spec.providerID and are not named after the instance's private DNS name. Not set: no such tag."},
		{Flag: "instance-cluster-tag", Unit: "key[=value]", parse: tag(&o.InstanceClusterTag),
			Doc: "EC2 tag that an instance must have for the operator to manage it, with any value if none is given. Not set: none."},
		{Flag: "adopt-enis", parse: list(&o.AdoptENIs, among(adoptable...)),
			Doc: "Other systems whose ENIs the operator manages like its own on nodes with a NodeNetwork, separated by commas: `amazon-vpc-cni`, `cilium`. Without it, such ENIs occupy the instance's slots. For the migration from that system, and for as long as such ENIs are attached."},
		{Flag: "node-gone-grace", Default: "1m", parse: duration(&o.NodeGoneGrace, time.Second, 30*day),
			Doc: "How long a node's Node object or its instance must be gone, and its daemon silent, before its NodeNetwork is removed."},
		{Flag: "shrink-delay", Default: "1m", parse: duration(&o.ShrinkDelay, time.Millisecond, day),
			Doc: "How long an address or ENI must be in excess before it is released to EC2."},
		{Flag: "listing-interval", Default: "1m", parse: duration(&o.ListingInterval, time.Second, day),
			Doc: "How often all ENIs and addresses of the cluster's nodes are listed at EC2, to find changes that replies did not show, and how often the network of a VPC is looked up."},
		{Flag: "settle-time", Default: "1m", parse: duration(&o.SettleTime, time.Second, day),
			Doc: "How long a reply of EC2 takes precedence over listings, which may lag behind."},
		{Flag: "orphan-age", Default: "15m", parse: duration(&o.OrphanAge, time.Second, 30*day),
			Doc: "How long this process must have seen a detached ENI of a vanished instance of this cluster, or a port without a PodNIC, before it deletes the ENI or port. A restart starts over."},
		{Flag: "orphan-interval", Default: "10m", parse: duration(&o.OrphanInterval, time.Second, day),
			Doc: "How often the operator looks for such ENIs and ports, on average."},
	}
}

func (o *OperatorPools) rows() []Setting {
	return []Setting{
		{Flag: "block-claim-grace", Default: "2m", parse: duration(&o.BlockClaimGrace, time.Second, 30*day),
			Doc: "How long a node's Node object must be gone without a claim of its daemon before the node's blocks are released. A daemon claims every 20 s."},
		{Flag: "node-max-pods", Default: "1024", Unit: "pods", parse: integer(&o.NodeMaxPods, 1<<16, 1024),
			Doc: "Maximum of pods that count for a node's quota of blocks of a pool, which is room for twice its pods plus one block. The kubelet's maximum counts if it is lower. 0: no quota."},
		{Flag: "release-blocks-of-down-nodes", Default: "0s", parse: duration(&o.DownNodeRelease, 0, 30*day),
			Doc: "How long a Node with the taint node.kubernetes.io/out-of-service must have been not ready before its blocks are released. 0: they stay as long as the Node exists."},
	}
}

// DefaultOperatorMetrics is the default of the operator's metrics-address.
const DefaultOperatorMetrics = "127.0.0.1:61680"

func (o *OperatorPorts) rows() []Setting {
	return []Setting{
		{Flag: "vpc-calls", Default: strconv.Itoa(lanes.DefaultCalls), Unit: "calls", parse: integer(&o.VPCCalls, 1024, lanes.DefaultCalls),
			Doc: "Maximum of concurrent calls to one endpoint of a VPC provider. It is reduced after the provider rejected calls as too many. For EC2, --ec2-limits applies instead."},
		{Flag: "unplug-grace", Default: "1m", parse: duration(&o.UnplugGrace, time.Second, day),
			Doc: "How long the operator waits for a node's daemon to unplug the port of a pod that is gone before it deletes the port or binds it elsewhere. It does not wait for a node that is gone or has the taint node.kubernetes.io/out-of-service."},
		{Flag: "branch-cooling", Default: "1m", parse: duration(&o.BranchCooling, time.Second, day),
			Doc: "How long an EC2 branch interface is kept after its pod is gone, with its address and VLAN, so that packets in flight to that pod reach no other pod."},
		{Flag: "first-interface-is-port", Default: "true", bare: true, parse: boolean(&o.FirstIsPort),
			Doc: "Whether the first interface of pods with NICs, which has the pod's IP, is a port of a VPC, too. Set to false if it comes from ENIs or address pools."},
		{Flag: "webhook-address", parse: checked(&o.WebhookAddr, orEmpty(hostPort)),
			Doc: "TLS address of the admission webhook for PodNICs and for pods that ask for NICs or that NICPolicies may select. Every operator serves it, leading or not. Not set: no webhook; NICPolicies have no effect, and errors of pods appear as Events."},
		{Flag: "webhook-clients", parse: cidrs(&o.WebhookFrom),
			Doc: "Networks from which the webhook accepts requests in addition to the API server's addresses (the endpoints of the Service `default/kubernetes`) and those of nodes, such as the pods of a proxy. Other connections are refused. `0.0.0.0/0,::/0` lets anyone ask what pods of any namespace would get. No effect if clients must present a certificate."},
	}
}

func (o *OperatorEgress) rows() []Setting {
	return []Setting{
		{Flag: "egress", Default: "false", bare: true, parse: boolean(&o.Egress),
			Doc: "Run gateways for Egresses, and assign clients to them, in addition to the features of --ipam, or alone with an empty --ipam."},
		{Flag: "egress-image", parse: text(&o.EgressImage),
			Doc: "Image of gateways, which has the program berth-egress. Required with --egress."},
		{Flag: "egress-port", Default: "5555", Unit: "port", parse: integer(&o.EgressPort, 1<<16-1, 5555),
			Doc: "UDP port of the tunnels between clients and gateways. It must equal the daemons' setting of this name."},
	}
}

func (o *OperatorPolicies) rows() []Setting {
	return []Setting{
		{Flag: "network-policies", Default: "false", bare: true, parse: boolean(&o.NetworkPolicies),
			Doc: "Resolve NetworkPolicies, and ClusterNetworkPolicies where that kind is installed, for the daemons of nodes, which enforce them, in addition to the features of --ipam, or alone with an empty --ipam."},
		{Flag: "network-policy-address", parse: checked(&o.NetworkPolicyAddr, orEmpty(ownAddressPort)),
			Doc: "Address and port on which the leading operator serves daemons with network policies, by gRPC with TLS. Daemons of all nodes connect to this address, so it must be one of the operator's own, such as that of its node. Required with --network-policies."},
		{Flag: "network-policy-daemons", Unit: "user name", parse: text(&o.NetworkPolicyDaemons),
			Doc: "User name of the daemons that are served. Default: the service account berthd in the namespace of the Lease."},
	}
}

func (o *OperatorWatching) rows() []Setting {
	return []Setting{
		{Flag: "metrics-address", Default: DefaultOperatorMetrics, parse: checked(&o.MetricsAddr, orEmpty(hostPort)),
			Doc: "Address on which /metrics, /livez, /readyz and /startupz are served; a loopback address also serves /settings. Use the node's own address for a Prometheus on another host; every pod that reaches it can connect then. Empty disables it."},
		{Flag: "health-address", parse: checked(&o.HealthAddr, orEmpty(hostPort)),
			Doc: "Additional address for /livez, /readyz and /startupz, so that probes do not depend on metrics-address; a loopback address also serves /metrics and /settings, for support bundles. Not set: none."},
		{Flag: "pprof-address", parse: checked(&o.PprofAddr, orEmpty(loopbackPort)),
			Doc: "Loopback address on which /debug/pprof is served. Not set: none."},
		{Flag: "planner-address", parse: checked(&o.PlannerAddr, orEmpty(loopbackPort)),
			Doc: "Loopback address on which the [planner](../guides/plan.md) is served: its page, and simulations, each in a process of its own with a low priority. It shows nothing of the cluster and changes nothing. You reach it by kubectl port-forward. Not set: not at all."},
	}
}
