package config

import (
	"time"
)

// NodeSettings are what a node is, and where its addresses come from.
type NodeSettings struct {
	NodeName    string
	Namespace   string // of berthd's pod; empty out of a cluster
	ClusterName string
	StateDir    string
	Socket      string
	IPAM        string // IPAMENI, IPAMENIOperator, IPAMPool, IPAMPort or IPAMNone

	AutoCreateNodeNetwork bool
	NodeNetworkTemplates  bool   // in node mode: NodeNetworkTemplates count
	Kubeconfig            string // empty: in the cluster
}

func (c *NodeSettings) rows() []Setting {
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

// ServingSettings are how calls of the plugin are served, and the kernel is kept.
type ServingSettings struct {
	WarmWait         time.Duration
	DrainTimeout     time.Duration
	CRISocket        string
	NetnsGrace       time.Duration
	RepairInterval   time.Duration
	ForeignAddresses string // what is done about addresses of running pods on the node's links: ForeignTell or ForeignRemove
}

func (c *ServingSettings) rows() []Setting {
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

// WatchingSettings are what the daemon shows.
type WatchingSettings struct {
	IntrospectionAddr string
	MetricsAddr       string
	PodEvents         string // PodEventsAuto, PodEventsAlways or PodEventsNever
	Pprof             bool
}

func (c *WatchingSettings) rows() []Setting {
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

// InstallSettings are how the plugin and its configuration are installed.
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
