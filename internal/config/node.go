package config

import (
	"time"
)

// NodeSettings define the identity of a node and the source of its addresses.
type NodeSettings struct {
	NodeName    string
	Namespace   string // of berthd's pod; empty outside a cluster
	ClusterName string
	StateDir    string
	Socket      string
	IPAM        string // IPAMENI, IPAMENIOperator, IPAMPool, IPAMPort or IPAMNone

	AutoCreateNodeNetwork bool
	NodeNetworkTemplates  bool   // in node mode: NodeNetworkTemplates apply
	Kubeconfig            string // empty: in the cluster
}

func (c *NodeSettings) rows() []Setting {
	return []Setting{
		{Flag: "node-name", Env: []string{"MY_NODE_NAME", "NODE_NAME"}, parse: text(&c.NodeName),
			Doc: "Name of this node, shown by introspection and used to tag ENIs. With ipam=eni-operator, ipam=pool or ports of VPCs it must be the name of the Node object. Default: the host name."},
		{Flag: "cluster-name", Env: []string{"CLUSTER_NAME"}, Default: "default", parse: checked(&c.ClusterName, clusterName),
			Doc: "Name of the cluster. ENIs are tagged with it, and only ENIs with this tag are ever cleaned up, so clusters that share a VPC need different names."},
		{Flag: "state-dir", Default: "/run/berth", parse: absolutePath(&c.StateDir, false),
			Doc: "Directory of attachment records and of the last inventory that the cloud or the API server confirmed. It should be on a tmpfs, so that it vanishes together with the kernel state that it describes."},
		{Flag: "socket", Default: "/run/berth/berthd.sock", parse: socketPath(&c.Socket, false),
			Doc: "Unix socket on which the plugin reaches the daemon, created with mode 0600."},
		{Flag: "ipam", Default: IPAMENI, parse: oneOf(&c.IPAM, IPAMENI, IPAMENIOperator, IPAMPool, IPAMPort, IPAMNone),
			Doc: "Source of this node's addresses. `eni`: EC2, called by the daemon itself. `eni-operator`: EC2, called by the cluster's operator, which publishes them in the node's NodeNetwork object. `pool`: address pools, of which the operator gives blocks to the node. `port`: ports of VPCs, which the operator creates for pods as PodNIC objects. `none`: another network, after whose plugins berth runs to provide egress. `pool`, `port` and `none` need no EC2 and ignore the settings under \"Cloud\"."},
		{Flag: "auto-create-node-network", Default: "false", bare: true, parse: boolean(&c.AutoCreateNodeNetwork),
			Doc: "With ipam=eni-operator, create the node's NodeNetwork object from the settings under \"Warm addresses\" and \"ENIs\" if it is missing, and replace one of another instance. An existing object of this instance is not changed. If false, the daemon waits for the object."},
		{Flag: "node-network-templates", Default: "false", bare: true, parse: boolean(&c.NodeNetworkTemplates),
			Doc: "With ipam=eni, let NodeNetworkTemplates that select this node by its Node's labels replace the settings under \"Warm addresses\" and \"ENIs\". This needs the Kubernetes API: a node that has not reached it since boot takes no pods. With ipam=eni-operator, templates always apply."},
		{Flag: "kubeconfig", parse: absolutePath(&c.Kubeconfig, true),
			Doc: "Kubeconfig file for the Kubernetes API, which ipam=eni uses only for pod-events, node-network-templates and vpc-ports. Default: the pod's service account."},
	}
}

// ServingSettings define how calls of the plugin are served and the kernel is reconciled.
type ServingSettings struct {
	WarmWait         time.Duration
	DrainTimeout     time.Duration
	CRISocket        string
	NetnsGrace       time.Duration
	RepairInterval   time.Duration
	ForeignAddresses string // reaction to addresses of running pods on the node's links: ForeignTell or ForeignRemove
	AWSCheckpoints   string // directory of the Amazon VPC CNI's checkpoint
}

func (c *ServingSettings) rows() []Setting {
	return []Setting{
		{Flag: "warm-wait", Default: "45s", parse: duration(&c.WarmWait, 0, 9*time.Minute),
			Doc: "How long an ADD waits for an address when none is warm before it fails with code 11 (try again later)."},
		{Flag: "drain-timeout", Default: "5s", parse: duration(&c.DrainTimeout, 0, 10*time.Minute),
			Doc: "How long a daemon that shuts down waits for kernel work to finish."},
		{Flag: "cri-socket", parse: socketPath(&c.CRISocket, true),
			Doc: "Socket of the container runtime, such as /run/containerd/containerd.sock. If set, a pod whose network namespace is gone is released only if the runtime does not list it, either."},
		{Flag: "netns-grace", Default: "1m", parse: duration(&c.NetnsGrace, 0, day),
			Doc: "How long a network namespace must be gone before its attachment is released without a DEL."},
		{Flag: "repair-interval", Default: "1m", parse: duration(&c.RepairInterval, time.Second, day),
			Doc: "How often the kernel is compared with its desired state, in addition to each observed change."},
		{Flag: "foreign-addresses", Default: ForeignTell, parse: oneOf(&c.ForeignAddresses, ForeignTell, ForeignRemove),
			Doc: "What to do when other software adds a running pod's address to a link of the node, which cuts the pod off. `tell`: report it by the condition AddressesExclusive, an Event on the pod and a metric. `remove`: also remove the address from the link, unless the node needs it."},
		{Flag: "aws-node-dir", Default: "/run/aws-node", parse: absolutePath(&c.AWSCheckpoints, false),
			Doc: "Directory where the Amazon VPC CNI, if it runs or ran on the node, keeps the addresses of its pods (`ipam.json`). Addresses that its pods hold are not handed out. With `--adopt-enis=amazon-vpc-cni`, berthd keeps a checkpoint there with which the Amazon VPC CNI does not start."},
	}
}

// WatchingSettings define which information the daemon serves and writes.
type WatchingSettings struct {
	IntrospectionAddr string
	MetricsAddr       string
	PodEvents         string // PodEventsAuto, PodEventsAlways or PodEventsNever
	Pprof             bool
}

func (c *WatchingSettings) rows() []Setting {
	return []Setting{
		{Flag: "introspection-address", Default: "127.0.0.1:6666", parse: checked(&c.IntrospectionAddr, orEmpty(loopbackPort)),
			Doc: "Loopback address on which /ip-manager, /livez, /readyz and /startupz are served. Empty disables it, and with it the probes of the manifests."},
		{Flag: "metrics-address", Default: "127.0.0.1:61678", parse: checked(&c.MetricsAddr, orEmpty(hostPort)),
			Doc: "Address on which /metrics, /livez, /readyz and /startupz are served. Use the node's own address for a Prometheus on another host; every pod that reaches it can connect then. Empty disables it."},
		{Flag: "pod-events", Default: PodEventsAuto, parse: oneOf(&c.PodEvents, PodEventsAuto, PodEventsAlways, PodEventsNever),
			Doc: "Write Events on pods that say why their ADDs wait or fail. `auto`: always with ipam=eni-operator, ipam=pool and ipam=port; with ipam=eni, which needs the Kubernetes API for nothing else, if there is a kubeconfig or a service account. `always`: exit if there is neither. `never`: write none."},
		{Flag: "pprof", Default: "false", bare: true, parse: boolean(&c.Pprof),
			Doc: "Serve /debug/pprof on the introspection address."},
	}
}

// InstallSettings define how the plugin and its configuration are installed.
type InstallSettings struct {
	InstallCNI  bool
	CNIBinDir   string
	CNIConfDir  string
	CNIConfName string
	CNIPlugin   string
	CNIVolatile bool
	CNIBundle   string // empty: beside berthd
	CNIVersion  string
	CNINetwork  string
	CNIChain    []string
}

func (c *InstallSettings) rows() []Setting {
	return []Setting{
		{Flag: "install-cni", Default: "false", bare: true, parse: boolean(&c.InstallCNI),
			Doc: "Install the plugin binary and its configuration once the first address is usable."},
		{Flag: "cni-bin-dir", Default: "/opt/cni/bin", parse: absolutePath(&c.CNIBinDir, false),
			Doc: "Where the runtime looks for plugin binaries."},
		{Flag: "cni-conf-dir", Default: "/etc/cni/net.d", parse: absolutePath(&c.CNIConfDir, false),
			Doc: "Where the runtime looks for network configuration."},
		{Flag: "cni-conf-name", Default: "10-berth.conflist", parse: checked(&c.CNIConfName, conflistName),
			Doc: "Name of the configuration file, ending in .conflist. Of several files, runtimes use the one whose name sorts first."},
		{Flag: "cni-plugin", parse: absolutePath(&c.CNIPlugin, true),
			Doc: "Plugin binary to install. Default: berth, next to the berthd binary."},
		{Flag: "cni-conf-volatile", Default: "true", bare: true, parse: boolean(&c.CNIVolatile),
			Doc: "Keep the configuration next to the socket, on a tmpfs, with only a link to it in cni-conf-dir, so that a rebooted node takes no pods before berthd has set it up. Disable this if a container reads or edits the file in cni-conf-dir without seeing the socket's folder."},
		{Flag: "cni-bundle-dir", parse: absolutePath(&c.CNIBundle, true),
			Doc: "Folder of plugins that come with berthd. Those of cni-chain, and loopback, are copied to cni-bin-dir if it lacks them. Other files are not touched. Default: cni, next to the berthd binary."},
		{Flag: "cni-version", Default: "auto", parse: oneOf(&c.CNIVersion, "auto", "0.3.1", "0.4.0", "1.0.0", "1.1.0"),
			Doc: "CNI version of the installed configuration. auto offers all versions that the chained plugins speak, of which the runtime uses the newest that it knows. With a given version, plugins that do not speak it are left out."},
		{Flag: "cni-network", Default: "berth", parse: checked(&c.CNINetwork, fileName),
			Doc: "Network name of the installed configuration."},
		{Flag: "cni-chain", Default: "portmap,bandwidth", parse: list(&c.CNIChain, fileName),
			Doc: "Plugins to chain after berth in the installed configuration, separated by commas. Plugins that are missing in cni-bin-dir or do not work are left out."},
	}
}
