package config

import (
	"math"
	"strings"
	"time"

	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
)

// Setting is one row of the table.
type Setting struct {
	Group   string   // heading in the reference
	Flag    string   // without dashes
	Env     []string // by precedence; BERTH_<FLAG> first, then names known from elsewhere
	Default string   // as one would write it; empty: not set
	Unit    string   // what a number counts; empty where the text says it
	Doc     string   // one sentence or two, for the reference and --help

	parse parser // checks a text and stores it in the program's settings
	bare  bool   // a flag that needs no value
}

const (
	maxCount = 1 << 16 // no node has as many addresses
	day      = 24 * time.Hour
)

// table lists every setting; parsing writes to c.
func table(c *Config) []Setting {
	return rows([]group{
		{"Node", nodeSettings(c)},
		{"Warm addresses", warmSettings(c)},
		{"ENIs", eniSettings(c)},
		{"Address pools", poolSettings(c)},
		{"VPC ports", portSettings(c)},
		{"Egress", egressSettings(c)},
		{"Cloud", cloudSettings(&c.Region, &c.EC2Endpoint, &c.IMDSEndpoint, &c.IMDSMode)},
		{"Data path", datapathSettings(c)},
		{"Serving", servingSettings(c)},
		{"Watching", append(watchingSettings(c), logSettings(&c.LogLevel, &c.LogFormat)...)},
		{"Plugin installation", installSettings(c)},
	})
}

// group is the settings under one heading of the reference.
type group struct {
	name string
	rows []Setting
}

// rows puts groups into one table, and each setting's own variable first.
func rows(groups []group) []Setting {
	var rows []Setting
	for _, g := range groups {
		for _, s := range g.rows {
			s.Group = g.name
			s.Env = append([]string{"BERTH_" + strings.ToUpper(strings.ReplaceAll(s.Flag, "-", "_"))}, s.Env...)
			rows = append(rows, s)
		}
	}
	return rows
}

func nodeSettings(c *Config) []Setting {
	return []Setting{
		{Flag: "node-name", Env: []string{"MY_NODE_NAME", "NODE_NAME"}, parse: text(&c.NodeName),
			Doc: "Name of this node, shown by introspection and put on ENIs; with ipam=eni-operator, ipam=pool and ports of VPCs that of its Node object. Default: the host name."},
		{Flag: "cluster-name", Env: []string{"CLUSTER_NAME"}, Default: "default", parse: checked(&c.ClusterName, nonEmpty),
			Doc: "Name of the cluster. It is put on ENIs as a tag, and only ENIs with the same tag are ever cleaned up: clusters that share a VPC need names that differ."},
		{Flag: "state-dir", Default: "/run/berth", parse: absolutePath(&c.StateDir, false),
			Doc: "Directory of the attachment records and the last inventory that the cloud, or the API server, confirmed. It should be on a tmpfs, so that it vanishes with the kernel state that it describes."},
		{Flag: "socket", Default: "/run/berth/berthd.sock", parse: socketPath(&c.Socket, false),
			Doc: "Unix socket on which the plugin reaches the daemon; made with mode 0600."},
		{Flag: "ipam", Default: IPAMENI, parse: oneOf(&c.IPAM, IPAMENI, IPAMENIOperator, IPAMPool, IPAMPort, IPAMNone),
			Doc: "Where this node's addresses come from: `eni`, from EC2, asked by the daemon itself; `eni-operator`, from EC2, asked by the cluster's operator, by way of the node's NodeNetwork object; `pool`, from address pools, by blocks that the operator gives the node; `port`, from the ports of VPCs that the operator has made for pods, as PodNIC objects say; `none`, from nowhere: pods have theirs of another network, after whose plugins berth is called, and get egress. With `pool`, `port` and `none` no cloud of ENIs is needed, and what is under \"Cloud\" means nothing."},
		{Flag: "auto-create-node-network", Default: "false", bare: true, parse: boolean(&c.AutoCreateNodeNetwork),
			Doc: "With ipam=eni-operator, create the node's NodeNetwork object if there is none, from the settings under \"Warm addresses\" and \"ENIs\", and replace one of another instance. An object that is there stays as it is. Else the object is waited for."},
		{Flag: "node-network-templates", Default: "false", bare: true, parse: boolean(&c.NodeNetworkTemplates),
			Doc: "With ipam=eni, have NodeNetworkTemplates that select this node by its Node's labels count in place of the settings under \"Warm addresses\" and \"ENIs\". It needs the Kubernetes API: a node that never reached it since it was booted takes no pods. With ipam=eni-operator they count without it."},
		{Flag: "kubeconfig", parse: absolutePath(&c.Kubeconfig, true),
			Doc: "The file that tells how to reach the Kubernetes API, which ipam=eni uses for pod-events, node-network-templates, and vpc-ports, only. Default: as any pod of the cluster does."},
	}
}

func warmSettings(c *Config) []Setting {
	return []Setting{
		{Flag: "warm-eni-target", Env: []string{"WARM_ENI_TARGET"}, Unit: "ENIs", parse: integer(&c.WarmENITarget, 64, -1),
			Doc: "ENIs without a pod to keep attached and filled. Counts as 1 when no other target is set (not with ipam=eni-operator); ignored when a warm IP or minimum IP target is."},
		{Flag: "warm-ip-target", Env: []string{"WARM_IP_TARGET"}, Unit: "addresses", parse: integer(&c.WarmIPTarget, maxCount, -1),
			Doc: "Free addresses to keep assigned to the node."},
		{Flag: "minimum-ip-target", Env: []string{"MINIMUM_IP_TARGET"}, Unit: "addresses", parse: integer(&c.MinimumIPTarget, maxCount, -1),
			Doc: "Addresses to keep assigned to the node at least, used ones included."},
		{Flag: "warm-prefix-target", Env: []string{"WARM_PREFIX_TARGET"}, Unit: "prefixes", parse: integer(&c.WarmPrefixTarget, maxCount, -1),
			Doc: "Unused /28 prefixes to keep assigned to the node, with prefix delegation."},
		{Flag: "enable-prefix-delegation", Env: []string{"ENABLE_PREFIX_DELEGATION"}, Default: "false", bare: true, parse: boolean(&c.PrefixDelegation),
			Doc: "Assign /28 prefixes to ENIs rather than single IPv4 addresses, where the instance type allows it."},
		{Flag: "min-allocate", Unit: "addresses", parse: integer(&c.MinAllocate, maxCount, -1),
			Doc: "Addresses to have assigned to the node at least. With pre-allocate and max-above-watermark, the second way to ask for warm addresses; not to be mixed with the targets above."},
		{Flag: "pre-allocate", Unit: "addresses", parse: integer(&c.PreAllocate, maxCount, -1),
			Doc: "Free addresses to keep assigned to the node. Counts as 8 when another setting of this dialect is set and this one is not, and with ipam=eni-operator when no target is set."},
		{Flag: "max-above-watermark", Unit: "addresses", parse: integer(&c.MaxAboveWatermark, maxCount, -1),
			Doc: "How many addresses more than needed one growth may assign, to save calls."},
		{Flag: "max-allocate", Unit: "addresses", parse: integer(&c.MaxAllocate, maxCount, -1),
			Doc: "Addresses to have assigned to the node at most, in this dialect. Not set or 0: no cap."},
		{Flag: "cooling-period", Env: []string{"IP_COOLDOWN_PERIOD"}, Default: ipam.DefaultCooling.String(), parse: duration(&c.CoolingPeriod, 0, day),
			Doc: "How long a released address is kept from new pods."},
		{Flag: "max-pods", Env: []string{"MAX_PODS"}, Default: "0", Unit: "pods", parse: integer(&c.MaxPods, maxCount, 0),
			Doc: "Most pods with an address of their own on this node: growth stops there. 0 sets no cap."},
		{Flag: "shrink-delay", Default: "1m", parse: duration(&c.ShrinkDelay, time.Millisecond, day),
			Doc: "How long an address or ENI must be in excess before it goes back to the cloud."},
		{Flag: "listing-interval", Default: "5m", parse: duration(&c.ListingInterval, time.Second, day),
			Doc: "How often everything the cloud holds for this node is listed, to repair what events missed."},
		{Flag: "settle-time", Default: "1m", parse: duration(&c.SettleTime, time.Second, day),
			Doc: "How long a reply of the cloud outranks listings, which may trail it. A change that a crash interrupted is taken up again after it."},
		{Flag: "orphan-age", Default: "15m", parse: duration(&c.OrphanAge, time.Second, 30*day),
			Doc: "How long this process must have seen an ENI of a vanished instance of this cluster detached before it deletes it. A restart begins anew."},
		{Flag: "orphan-interval", Default: "10m", parse: duration(&c.OrphanInterval, time.Second, day),
			Doc: "How often this node looks for such ENIs, at random times around it."},
	}
}

func eniSettings(c *Config) []Setting {
	return []Setting{
		{Flag: "ip-families", Default: string(ipfamily.OnlyIPv4), parse: oneOf((*string)(&c.IPFamilies), string(ipfamily.OnlyIPv4), string(ipfamily.OnlyIPv6), string(ipfamily.Dual)),
			Doc: "Of which families each pod gets an address: `ipv4`, `ipv6`, or `dual`, one of each, both of the same ENI. IPv6 needs an IPv6 block of the VPC and of the subnets of ENIs; its addresses come as a /80 prefix for each ENI, or one by one where the instance type has no prefixes. With ipam=eni-operator it is what the NodeNetwork object is created with."},
		{Flag: "max-eni", Env: []string{"MAX_ENI"}, Unit: "ENIs", parse: positiveOr(&c.MaxENI, 64, 0),
			Doc: "Most ENIs on this node, the primary included. Not set, 0 or less: what the instance type allows."},
		{Flag: "first-interface-index", parse: integer(&c.FirstInterfaceIndex, 15, -1),
			Doc: "Device index of the first ENI that carries pods. 1 leaves the primary ENI to the node. Counts as 0 when not set, with min-allocate and its like, or ipam=eni-operator, as 1."},
		{Flag: "subnets", Unit: "subnet IDs", parse: list(&c.Subnets, prefixed("subnet-")),
			Doc: "Subnets of new ENIs, separated by commas. Default: the primary ENI's; with ipam=eni-operator, any of the node's VPC and zone."},
		{Flag: "subnet-tags", Unit: "key=value", parse: pairs(&c.SubnetTags),
			Doc: "Tags that choose the subnets of new ENIs in the node's zone, separated by commas; not with subnets."},
		{Flag: "security-groups", Unit: "group IDs", parse: list(&c.SecurityGroups, prefixed("sg-")),
			Doc: "Security groups of new ENIs, separated by commas. Default: the primary ENI's."},
		{Flag: "follow-security-groups", Default: "true", bare: true, parse: boolean(&c.FollowSecurityGroups),
			Doc: "With ipam=eni, without NodeNetworkTemplates, and with security groups configured nowhere else, give ENIs that are there the security groups of the primary ENI whenever these change. Otherwise only new ENIs get them, and the condition `SecurityGroupsFollowed` tells when others differ."},
		{Flag: "security-group-tags", Unit: "key=value", parse: pairs(&c.SecurityGroupTags),
			Doc: "With ipam=eni-operator, tags that choose the security groups of new ENIs in the VPC, separated by commas; not with security-groups."},
		{Flag: "use-primary-address", Default: "false", bare: true, parse: boolean(&c.UsePrimaryAddress),
			Doc: "With ipam=eni-operator, give pods also the primary address of each ENI that carries pods, eth0's excepted."},
		{Flag: "trunk-eni", Default: "false", bare: true, parse: boolean(&c.TrunkENI),
			Doc: "With ipam=eni-operator, have the operator keep a trunk ENI on the instance, for branch interfaces of pods, if its type may have branches. It takes the place of one ENI with addresses for pods."},
		{Flag: "delete-on-termination", Default: "true", bare: true, parse: boolean(&c.DeleteOnTermination),
			Doc: "Have EC2 delete this node's ENIs with the instance. Those that stay are deleted once they were seen detached for orphan-age."},
	}
}

// cloudSettings are those of every program that calls EC2.
func cloudSettings(region, ec2Endpoint, imdsEndpoint, imdsMode *string) []Setting {
	return []Setting{
		{Flag: "region", Env: []string{"AWS_REGION", "AWS_DEFAULT_REGION"}, parse: text(region),
			Doc: "AWS region. Default: the instance's."},
		{Flag: "ec2-endpoint", Env: []string{"AWS_ENDPOINT_URL_EC2", "AWS_ENDPOINT_URL"}, parse: checked(ec2Endpoint, orEmpty(httpURL)),
			Doc: "URL of the EC2 API. Default: the region's. With AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=true the AWS variables do not count."},
		{Flag: "imds-endpoint", Env: []string{"AWS_EC2_METADATA_SERVICE_ENDPOINT"}, parse: checked(imdsEndpoint, orEmpty(httpURL)),
			Doc: "URL of the instance metadata service. Default: http://169.254.169.254, or http://[fd00:ec2::254] as imds-endpoint-mode says."},
		{Flag: "imds-endpoint-mode", Env: []string{"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"}, Default: imdsModeIPv4, parse: oneOf(imdsMode, imdsModeIPv4, imdsModeIPv6),
			Doc: "Protocol by which the metadata service is reached where imds-endpoint is not set: ipv4 or ipv6."},
	}
}

func datapathSettings(c *Config) []Setting {
	return []Setting{
		{Flag: "external-snat", Env: []string{"AWS_VPC_K8S_CNI_EXTERNALSNAT"}, Default: "false", bare: true, parse: boolean(&c.ExternalSNAT),
			Doc: "Leave address translation to a NAT gateway: pods leave the VPC with their own address."},
		{Flag: "exclude-snat-cidrs", Env: []string{"AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS"}, parse: cidrs(&c.ExcludeSNATCIDRs),
			Doc: "Networks outside the VPC that see the pod's own address, separated by commas."},
		{Flag: "enable-v4-egress", Env: []string{"ENABLE_V4_EGRESS"}, Default: "true", bare: true, parse: boolean(&c.IPv4Egress),
			Doc: "With ENIs, give pods without an IPv4 address a node-local one, by which they reach the IPv4 world as their node."},
		{Flag: "enable-v6-egress", Env: []string{"ENABLE_V6_EGRESS"}, Default: "false", bare: true, parse: boolean(&c.IPv6Egress),
			Doc: "With ENIs, give pods without an IPv6 address a node-local one, by which they reach the IPv6 world as their node."},
		{Flag: "mtu", Env: []string{"AWS_VPC_ENI_MTU"}, Default: "0", Unit: "bytes", parse: mtu(&c.MTU),
			Doc: "MTU of pod interfaces and secondary ENIs. 0 takes the primary interface's (9001 in a VPC)."},
		{Flag: "block-metadata", bare: true, parse: optional(&c.BlockMetadata),
			Doc: "Keep pods from the instance metadata service, and so from the credentials of the node's role. Default: true."},
		{Flag: "max-connections-per-pod", Default: "0", parse: integer(&c.MaxConnections, math.MaxInt32, 0),
			Doc: "Most connections that a pod may have open by the node's connection tracking; 0: no limit of its own."},
		{Flag: "sysctl-dir", Default: "/proc/sys", parse: absolutePath(&c.SysctlDir, false),
			Doc: "Folder where the kernel's settings are written. A container that is not privileged has /proc/sys read-only; the chart mounts the node's net at another place."},
		{Flag: "mark-shift", Default: "0", Unit: "bits", parse: integer(&c.MarkShift, 24, 0),
			Doc: "Move the eight packet mark bits that Berth uses left, where another program uses the same ones."},
	}
}

func servingSettings(c *Config) []Setting {
	return []Setting{
		{Flag: "warm-wait", Default: "45s", parse: duration(&c.WarmWait, 0, 9*time.Minute),
			Doc: "How long an ADD waits for an address when none is warm, before it fails with code 11 (try again later)."},
		{Flag: "drain-timeout", Default: "5s", parse: duration(&c.DrainTimeout, 0, 10*time.Minute),
			Doc: "How long a daemon that was asked to end lets kernel work finish."},
		{Flag: "cri-socket", parse: socketPath(&c.CRISocket, true),
			Doc: "Socket of the container runtime, such as /run/containerd/containerd.sock. When set, a pod whose network namespace is gone is released only if the runtime does not list it either."},
		{Flag: "netns-grace", Default: "1m", parse: duration(&c.NetnsGrace, 0, day),
			Doc: "How long a network namespace must be gone before its attachment is released without a DEL."},
		{Flag: "repair-interval", Default: "1m", parse: duration(&c.RepairInterval, time.Second, day),
			Doc: "How often the kernel is compared with what it should be, besides at every change seen."},
		{Flag: "foreign-addresses", Default: ForeignTell, parse: oneOf(&c.ForeignAddresses, ForeignTell, ForeignRemove),
			Doc: "What to do about a running pod's address that other software gives to a link of the node, which cuts the pod off. `tell`: report it by the condition AddressesExclusive, an Event of the pod and a metric. `remove`: also remove the address from the link, unless the node needs it."},
	}
}

func watchingSettings(c *Config) []Setting {
	return []Setting{
		{Flag: "introspection-address", Default: "127.0.0.1:6666", parse: checked(&c.IntrospectionAddr, orEmpty(loopbackPort)),
			Doc: "Where /ip-manager, /livez, /readyz and /startupz are served; a loopback address. Empty turns it off, and with it the probes of the manifests."},
		{Flag: "metrics-address", Default: "127.0.0.1:61678", parse: checked(&c.MetricsAddr, orEmpty(hostPort)),
			Doc: "Where /metrics, /livez, /readyz and /startupz are served. For a Prometheus that comes from elsewhere, the node's own address; every pod that reaches it can connect then. Empty turns it off."},
		{Flag: "pod-events", Default: PodEventsAuto, parse: oneOf(&c.PodEvents, PodEventsAuto, PodEventsAlways, PodEventsNever),
			Doc: "Tell Pods by Events why their ADDs wait or fail. `auto`: always with ipam=eni-operator, ipam=pool and ipam=port; with ipam=eni, which needs the Kubernetes API for nothing else, if there is a kubeconfig or a service account. `always`: end if there is neither. `never`: tell them nothing."},
		{Flag: "pprof", Default: "false", bare: true, parse: boolean(&c.Pprof),
			Doc: "Serve /debug/pprof on the introspection address."},
	}
}

// logSettings are every program's.
func logSettings(level, format *string) []Setting {
	return []Setting{
		{Flag: "log-level", Env: []string{"AWS_VPC_K8S_CNI_LOGLEVEL"}, Default: "info", parse: logLevel(level),
			Doc: "Least severity that is logged: debug, info, warn or error. fatal, which the Amazon VPC CNI has besides, counts as error."},
		{Flag: "log-format", Default: "text", parse: oneOf(format, "text", "json"),
			Doc: "Form of a log line: text or json."},
	}
}

func installSettings(c *Config) []Setting {
	return []Setting{
		{Flag: "install-cni", Default: "false", bare: true, parse: boolean(&c.InstallCNI),
			Doc: "Install the plugin binary and its configuration, once the first address is usable."},
		{Flag: "cni-bin-dir", Default: "/opt/cni/bin", parse: absolutePath(&c.CNIBinDir, false),
			Doc: "Where the runtime looks for plugin binaries."},
		{Flag: "cni-conf-dir", Default: "/etc/cni/net.d", parse: absolutePath(&c.CNIConfDir, false),
			Doc: "Where the runtime looks for network configuration."},
		{Flag: "cni-conf-name", Default: "10-berth.conflist", parse: checked(&c.CNIConfName, conflistName),
			Doc: "Name of the configuration file, ending in .conflist. Where there are several, runtimes take the one whose name sorts first."},
		{Flag: "cni-plugin", parse: absolutePath(&c.CNIPlugin, true),
			Doc: "The plugin binary to install. Default: berth, beside berthd's own binary."},
		{Flag: "cni-conf-volatile", Default: "true", bare: true, parse: boolean(&c.CNIVolatile),
			Doc: "Keep the configuration beside the socket, on a tmpfs, and have only a link to it in cni-conf-dir. So a node that has rebooted takes no pods before berthd has set it up. Turn it off where something in a container reads or edits the file in cni-conf-dir, and does not see the socket's folder."},
		{Flag: "cni-bundle-dir", parse: absolutePath(&c.CNIBundle, true),
			Doc: "Folder of plugins that come with berthd: those of cni-chain, and loopback, are copied to cni-bin-dir if it lacks them. Files of others are left alone. Default: cni, beside berthd's own binary."},
		{Flag: "cni-version", Default: "auto", parse: oneOf(&c.CNIVersion, "auto", "0.3.1", "0.4.0", "1.0.0", "1.1.0"),
			Doc: "CNI version of the installed configuration. auto offers the runtime all versions that the chained plugins speak, of which it takes the newest that it knows itself. With a version, plugins that do not speak it are left out."},
		{Flag: "cni-network", Default: "berth", parse: checked(&c.CNINetwork, fileName),
			Doc: "Network name of the installed configuration."},
		{Flag: "cni-chain", Default: "portmap,bandwidth", parse: list(&c.CNIChain, fileName),
			Doc: "Plugins to chain after berth in the installed configuration, separated by commas. One that is not in cni-bin-dir, or does not work, is left out."},
	}
}
