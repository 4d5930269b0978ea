package config

import (
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"

	"github.com/berthnet/berth/internal/ipam"
	"github.com/berthnet/berth/internal/ipfamily"
	"github.com/berthnet/berth/internal/node/introspect"
)

func load(t *testing.T, args, env []string) (Config, error) {
	t.Helper()
	return loadBy(t, NewLoader, args, env)
}

func loadOperator(t *testing.T, args, env []string) (Operator, error) {
	t.Helper()
	return loadBy(t, NewOperatorLoader, args, env)
}

func loadBy[C any](t *testing.T, newLoader func(*pflag.FlagSet) *Loader[C], args, env []string) (C, error) {
	t.Helper()
	flags := pflag.NewFlagSet("program", pflag.ContinueOnError)
	l := newLoader(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return l.Load(env)
}

// says asserts that an error contains all texts.
func says(t *testing.T, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("settings were accepted, want error %q", texts)
		return
	}
	for _, want := range texts {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %s:\n%v", want, err)
		}
	}
}

func TestDefaults(t *testing.T) {
	c, err := load(t, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	want := Config{
		NodeSettings: NodeSettings{NodeName: host, ClusterName: "default", StateDir: "/run/berth", Socket: "/run/berth/berthd.sock", IPAM: IPAMENI},
		WarmSettings: WarmSettings{
			WarmENITarget: -1, WarmIPTarget: -1, MinimumIPTarget: -1, WarmPrefixTarget: -1,
			MinAllocate: -1, PreAllocate: -1, MaxAboveWatermark: -1, MaxAllocate: -1, CoolingPeriod: 30 * time.Second,
		},
		ENISettings: ENISettings{
			IPFamilies: ipfamily.OnlyIPv4, FirstInterfaceIndex: -1, SubnetTags: map[string]string{}, SecurityGroupTags: map[string]string{}, DeleteOnTermination: true, FollowSecurityGroups: true,
		},
		ENITimes:     ENITimes{ShrinkDelay: time.Minute, ListingInterval: 5 * time.Minute, SettleTime: time.Minute, OrphanAge: 15 * time.Minute, OrphanInterval: 10 * time.Minute},
		PoolSettings: PoolSettings{BlockWatermark: 25, BlockReleaseDelay: 5 * time.Minute, BlockClaimInterval: 20 * time.Second, ExportTable: 119},
		PortSettings: PortSettings{
			OVSDB: "unix:/run/openvswitch/db.sock", OVSBridges: []string{"br-int"}, PortWait: 45 * time.Second, AgentNamespaces: []string{"vpc-ns-", "vpc-ns"}, AgentWait: 3 * time.Second, GroupEnforcing: "strict",
		},
		EgressSettings: EgressSettings{
			EgressPort: 5555, EgressClusterNetworks: []netip.Prefix{
				netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("fc00::/7"),
			}, EgressWait: 45 * time.Second, EgressGatewayWait: 2 * time.Second, EgressProbeInterval: time.Second,
		},
		NetworkPolicySettings: NetworkPolicySettings{
			NetworkPolicyWait: 10 * time.Second, NetworkPolicyUnknown: UnknownFail, NetworkPolicyDir: "/var/lib/berth",
			NetworkPolicyToken: "/var/run/secrets/berth/network-policies/token", NetworkPolicyNamespace: "kube-system",
		},
		CloudSettings:    CloudSettings{IMDSMode: imdsModeIPv4},
		DatapathSettings: DatapathSettings{IPv4Egress: true, SysctlDir: "/proc/sys"},
		ServingSettings:  ServingSettings{WarmWait: 45 * time.Second, DrainTimeout: 5 * time.Second, NetnsGrace: time.Minute, RepairInterval: time.Minute, ForeignAddresses: ForeignTell, AWSCheckpoints: "/run/aws-node"},
		WatchingSettings: WatchingSettings{IntrospectionAddr: "127.0.0.1:6666", MetricsAddr: "127.0.0.1:61678", PodEvents: PodEventsAuto},
		LogSettings:      LogSettings{LogLevel: "info", LogFormat: "text"},
		InstallSettings: InstallSettings{
			CNIBinDir: "/opt/cni/bin", CNIConfDir: "/etc/cni/net.d", CNIConfName: "10-berth.conflist",
			CNIVolatile: true, CNIVersion: "auto", CNINetwork: "berth", CNIChain: []string{"portmap", "bandwidth"},
		},
	}
	c.Effective = nil // TestEffectiveSettings
	if diff := cmp.Diff(want, c, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Error(diff)
	}
}

func TestSettingPrecedence(t *testing.T) {
	alias, own := "WARM_IP_TARGET=3", "BERTH_WARM_IP_TARGET=5"
	for name, tt := range map[string]struct {
		args, env []string
		want      int
	}{
		"none":                      {want: -1},
		"alias":                     {env: []string{alias}, want: 3},
		"own name takes precedence": {env: []string{alias, own}, want: 5},
		"flag takes precedence":     {args: []string{"--warm-ip-target=7"}, env: []string{alias, own}, want: 7},
		"empty is not set":          {env: []string{"BERTH_WARM_IP_TARGET=", alias}, want: 3},
		"zero is set":               {env: []string{"WARM_IP_TARGET=0"}, want: 0},
		"flag with a space":         {args: []string{"--warm-ip-target", "7"}, want: 7},
		"flag set to the default":   {args: []string{"--warm-ip-target="}, env: []string{own}, want: -1},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := load(t, tt.args, tt.env)
			if err != nil || c.WarmIPTarget != tt.want {
				t.Errorf("warm IP target = %d, %v, want %d", c.WarmIPTarget, err, tt.want)
			}
		})
	}
}

func TestOperatorMode(t *testing.T) {
	c, err := load(t, []string{"--ipam=eni-operator", "--auto-create-node-network"}, []string{"BERTH_KUBECONFIG=/etc/berth/kubeconfig"})
	if err != nil || c.IPAM != IPAMENIOperator || !c.AutoCreateNodeNetwork || c.Kubeconfig != "/etc/berth/kubeconfig" {
		t.Errorf("config = %+v, %v", c, err)
	}
}

func TestPoolMode(t *testing.T) {
	c, err := load(t, []string{"--ipam=pool", "--withdraw-on-exit", "--kubeconfig=/k", "--node-name=n"}, []string{"BERTH_BLOCK_WATERMARK=50", "BERTH_EXPORT_TABLE=120"})
	if err != nil || c.IPAM != IPAMPool || !c.WithdrawOnExit || c.BlockWatermark != 50 || c.ExportTable != 120 || c.BlockReleaseDelay != 5*time.Minute {
		t.Errorf("config = %+v, %v", c, err)
	}
	if c, err := load(t, []string{"--ipam=pool"}, nil); err != nil || c.ExportTable != 119 || c.BlockWatermark != 25 || c.WithdrawOnExit {
		t.Errorf("config with defaults = %+v, %v", c, err)
	}
}

func TestPorts(t *testing.T) {
	c, err := load(t, []string{"--ipam=port", "--ignore-untold-annotations"}, nil)
	if err != nil || !c.HasPorts() || c.VPCPorts || c.OVSDB != "unix:/run/openvswitch/db.sock" || c.PortWait != 45*time.Second || c.AgentWait != 3*time.Second {
		t.Errorf("config = %+v, %v", c, err)
	}
	if diff := cmp.Diff([][]string{{"br-int"}, {"vpc-ns-", "vpc-ns"}}, [][]string{c.OVSBridges, c.AgentNamespaces}); diff != "" {
		t.Error(diff)
	}
	c, err = load(t, []string{"--ipam=pool", "--vpc-ports", "--ovsdb=", "--ovs-bridges=br-a,br-b", "--port-wait=2m"}, nil)
	if err != nil || !c.HasPorts() || c.OVSDB != "" || len(c.OVSBridges) != 2 || c.PortWait != 2*time.Minute {
		t.Errorf("config = %+v, %v", c, err)
	}
	for _, set := range []struct{ args, env []string }{
		{[]string{"--pod-security-group-enforcing-mode=standard"}, nil},
		{nil, []string{"POD_SECURITY_GROUP_ENFORCING_MODE=standard"}},
		{nil, []string{"BERTH_POD_SECURITY_GROUP_ENFORCING_MODE=standard", "POD_SECURITY_GROUP_ENFORCING_MODE=strict"}},
	} {
		if c, err := load(t, append(set.args, "--ipam=eni-operator", "--vpc-ports"), set.env); err != nil || c.GroupEnforcing != "standard" {
			t.Errorf("settings %+v: group enforcing = %q, %v, want standard", set, c.GroupEnforcing, err)
		}
	}
	if c, err := load(t, nil, nil); err != nil || c.HasPorts() {
		t.Errorf("config with defaults = %+v, %v, want no ports", c, err)
	}
	for arg, want := range map[string]string{
		"--ovsdb=/run/openvswitch/db.sock": "expected unix:/PATH or tcp:HOST:PORT", "--ovsdb=unix:db.sock": "expected unix:/PATH", "--ovsdb=tcp:127.0.0.1": "expected unix:/PATH",
		"--ovs-bridges=br-int,a-name-that-is-too-long": "of 15 characters at most", "--agent-wait=61s": "--agent-wait is more than 1m", "--agent-netns-prefixes=../x": "prefix of a file name",
		"--pod-security-group-enforcing-mode=none": "expected one of strict, standard",
	} {
		if _, err := load(t, []string{"--ipam=port", arg}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error = %v, want %q", arg, err, want)
		}
	}
}

func TestVariablesOfAmazonVPCCNI(t *testing.T) {
	c, err := load(t, nil, []string{
		"WARM_ENI_TARGET=2", "MINIMUM_IP_TARGET=10", "WARM_PREFIX_TARGET=1", "MAX_ENI=4", "ENABLE_PREFIX_DELEGATION=true",
		"IP_COOLDOWN_PERIOD=45", "AWS_VPC_K8S_CNI_EXTERNALSNAT=true", "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS=192.168.0.0/16, 2001:db8::/56",
		"AWS_VPC_ENI_MTU=1500", "CLUSTER_NAME=prod", "AWS_VPC_K8S_CNI_LOGLEVEL=DEBUG", "MY_NODE_NAME=ip-10-0-0-1",
		"AWS_ENDPOINT_URL_EC2=http://127.0.0.1:9000", "AWS_REGION=eu-west-1",
	})
	if err != nil {
		t.Fatal(err)
	}
	got := []any{c.WarmENITarget, c.MinimumIPTarget, c.WarmPrefixTarget, c.MaxENI, c.PrefixDelegation, c.CoolingPeriod,
		c.ExternalSNAT, c.MTU, c.ClusterName, c.LogLevel, c.NodeName, c.EC2Endpoint, c.Region}
	want := []any{2, 10, 1, 4, true, 45 * time.Second, true, 1500, "prod", "debug", "ip-10-0-0-1", "http://127.0.0.1:9000", "eu-west-1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if want := []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("2001:db8::/56")}; len(c.ExcludeSNATCIDRs) != 2 || c.ExcludeSNATCIDRs[0] != want[0] || c.ExcludeSNATCIDRs[1] != want[1] {
		t.Errorf("excluded CIDRs = %v, want two", c.ExcludeSNATCIDRs)
	}
}

// The Amazon VPC CNI's README, "AWS_VPC_K8S_CNI_LOGLEVEL", has five levels, in either case. Berth's
// highest level is error.
func TestLogLevelsOfAmazonVPCCNI(t *testing.T) {
	for v, want := range map[string]string{"DEBUG": "debug", "INFO": "info", "WARN": "warn", "ERROR": "error", "FATAL": "error", "fatal": "error", "": "info"} {
		if c, err := load(t, nil, []string{"AWS_VPC_K8S_CNI_LOGLEVEL=" + v}); err != nil || c.LogLevel != want {
			t.Errorf("AWS_VPC_K8S_CNI_LOGLEVEL=%s: log level = %q, %v", v, c.LogLevel, err)
		}
	}
}

func TestLogLevelAndFormat(t *testing.T) {
	c, err := load(t, []string{"--log-level=warn", "--log-format=json"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	log := c.Logger(&out)
	log.Info("hidden")
	log.Warn("shown")
	if s := out.String(); strings.Contains(s, "hidden") || !strings.Contains(s, `"msg":"shown"`) {
		t.Errorf("log = %s, want only the shown message", s)
	}
}

// The Amazon VPC CNI's README: "unset or 0 (or lower)" sets no limit.
func TestMaxENIBelowOneSetsNoLimit(t *testing.T) {
	for _, v := range []string{"-1", "0", ""} {
		if c, err := load(t, nil, []string{"MAX_ENI=" + v}); err != nil || c.MaxENI != 0 {
			t.Errorf("MAX_ENI=%s: MaxENI = %d, %v, want 0", v, c.MaxENI, err)
		}
	}
}

func TestBareFlags(t *testing.T) {
	c, err := load(t, []string{"--external-snat", "--pprof=true", "--block-metadata=false"}, []string{"BERTH_BLOCK_METADATA=true"})
	if err != nil || !c.ExternalSNAT || !c.Pprof || c.BlocksMetadata() {
		t.Errorf("external SNAT = %v, pprof = %v, metadata blocked = %v, error = %v", c.ExternalSNAT, c.Pprof, c.BlocksMetadata(), err)
	}
}

// Pods cannot reach the metadata service in any mode, unless a setting allows it.
func TestMetadataIsBlockedInAllModes(t *testing.T) {
	for _, tt := range []struct {
		args, env string
		want      bool
	}{
		{"", "", true}, {"--ipam=eni", "", true}, {"--ipam=eni-operator", "", true}, {"--ipam=pool", "", true},
		{"--block-metadata=false", "", false}, {"", "BERTH_BLOCK_METADATA=false", false}, {"", "BERTH_BLOCK_METADATA=", true},
		{"--ipam=eni-operator --block-metadata=false", "", false}, {"--ipam=pool", "BERTH_BLOCK_METADATA=false", false},
	} {
		c, err := load(t, strings.Fields(tt.args), []string{tt.env})
		if err != nil || c.BlocksMetadata() != tt.want {
			t.Errorf("flags %q and variables %q: metadata blocked = %v, %v, want %v", tt.args, tt.env, c.BlocksMetadata(), err, tt.want)
		}
	}
}

func TestAllInvalidSettingsAreNamed(t *testing.T) {
	_, err := load(t,
		[]string{"--warm-wait=soon", "--introspection-address=0.0.0.0:6666", "--mtu=100"},
		[]string{"WARM_ENI_TARGET=many", "BERTH_SUBNETS=subnet-1,vpc-2", "AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS=10.0.0.1/8"})
	says(t, err,
		`--warm-wait: "soon": expected a duration`,
		`--introspection-address: "0.0.0.0:6666": host "0.0.0.0" is not a loopback address`,
		`--mtu: "100": expected 0 or a number of bytes from 576`,
		`environment variable WARM_ENI_TARGET: "many": expected a whole number from 0 to 64`,
		`environment variable BERTH_SUBNETS: "subnet-1,vpc-2": item "vpc-2": expected an ID such as subnet-`,
		`environment variable AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS: "10.0.0.1/8": item "10.0.0.1/8": bits are set outside the mask, expected 10.0.0.0/8`)
}

func TestInvalidValuesAreRejected(t *testing.T) {
	for _, arg := range []string{
		"--state-dir=run", "--socket=" + "/" + strings.Repeat("x", 107), "--cooling-period=-1s", "--max-eni=65", "--first-interface-index=16",
		"--ec2-endpoint=ec2.local", "--metrics-address=61678", "--metrics-address=:99999", "--log-level=loud", "--log-format=xml",
		"--cni-version=0.2.0", "--cni-conf-name=../x.conflist", "--cni-conf-name=10-berth.conf", "--security-groups=subnet-1", "--subnet-tags=a", "--pprof=maybe",
		"--mark-shift=25", "--introspection-address=example:1", "--cni-chain=a/b",
		"--egress-port=0", "--egress-port=65536", "--egress-cluster-networks=10.0.0.1/8", "--egress-wait=-1s", "--egress-gateway-wait=3m", "--egress-probe-interval=1h",
		"--network-policy-wait=10m", "--network-policy-unknown=open", "--network-policy-dir=run", "--network-policy-token=token", "--network-policy-namespace=a/b",
	} {
		if _, err := load(t, []string{arg}, nil); err == nil {
			t.Errorf("%s was accepted, want an error", arg)
		}
	}
}

func TestContradictions(t *testing.T) {
	for args, want := range map[string]string{
		"--warm-ip-target=1 --pre-allocate=8":                                     "use one dialect",
		"--subnets=subnet-1 --subnet-tags=a=b":                                    "--subnets and --subnet-tags exclude each other",
		"--ipam=eni-operator --security-groups=sg-1 --security-group-tags=a=b":    "--security-groups and --security-group-tags exclude each other",
		"--ipam=eni --security-group-tags=a=b":                                    "--security-group-tags needs --ipam=eni-operator",
		"--ipam=eni-operator --node-network-templates":                            "--node-network-templates needs --ipam=eni",
		"--ipam=pool --node-network-templates":                                    "--node-network-templates needs --ipam=eni",
		"--ipam=eni-operator --follow-security-groups=false":                      "--follow-security-groups=false needs --ipam=eni",
		"--ipam=eni --trunk-eni":                                                  "--trunk-eni needs --ipam=eni-operator",
		"--ipam=eni --use-primary-address":                                        "--use-primary-address needs --ipam=eni-operator",
		"--introspection-address=127.0.0.1:7000 --metrics-address=127.0.0.1:7000": "are both 127.0.0.1:7000",
		"--auto-create-node-network":                                              "needs --ipam=eni-operator",
		"--kubeconfig=/k --pod-events=never":                                      "node mode uses the Kubernetes API for Events, --node-network-templates, --egress and --network-policies only",
		"--pod-events=maybe":                                                      "expected one of auto, always, never",
		"--ipam=eni --auto-create-node-network":                                   "needs --ipam=eni-operator",
		"--cluster-name=MY_CLUSTER":                                               "expected the name of this cluster",
		"--ipam=crd":                                                              "expected one of eni, eni-operator",
		"--withdraw-on-exit":                                                      "--withdraw-on-exit needs --ipam=pool",
		"--ignore-untold-annotations":                                             "--ignore-untold-annotations needs --ipam=pool",
		"--ipam=eni-operator --export-table=7":                                    "--export-table needs --ipam=pool",
		"--ipam=pool --auto-create-node-network":                                  "needs --ipam=eni-operator",
		"--ipam=pool --warm-ip-target=2 --external-snat":                          "--warm-ip-target, --external-snat: no effect",
		"--ipam=pool --subnets=subnet-1":                                          "--subnets: no effect",
		"--ipam=pool --ip-families=dual":                                          "--ip-families: no effect with --ipam=pool",
		"--ip-families=both":                                                      "expected one of ipv4, ipv6, dual",
		"--ipam=port --warm-ip-target=2":                                          "--warm-ip-target: no effect with --ipam=port: addresses are those of ports of VPCs",
		"--ipam=port --withdraw-on-exit":                                          "--withdraw-on-exit needs --ipam=pool",
		"--egress --egress-probe-interval=50ms":                                   "--egress-probe-interval is less than 100ms",
		"--vpc-ports --ovs-bridges=":                                              "--ovs-bridges is empty",
		"--ipam=pool --export-table=254":                                          "except 253 to 255",
		"--ipam=pool --export-table=0":                                            "expected the number of a routing table",
		"--ipam=pool --block-watermark=101":                                       "from 0 to 100",
		"--ipam=pool --block-release-delay=-1s":                                   "expected a duration",
	} {
		t.Run(args, func(t *testing.T) {
			_, err := load(t, strings.Fields(args), nil)
			says(t, err, want)
		})
	}
}

func TestUnknownVariables(t *testing.T) {
	c, err := load(t, nil, []string{"BERTH_WARM_IP_TARGT=1", "BERTH_OPERATOR_SERVICE_HOST=10.0.0.1", "BERTH_PORT_80_TCP=x", "BERTH_FAILPOINTS=", "HOME=/"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"BERTH_WARM_IP_TARGT"}, c.Unknown); diff != "" {
		t.Error(diff)
	}
}

// tables are the settings of both programs, with the functions that write their reference pages.
var tables = map[string]struct {
	settings []Setting
	write    func(io.Writer) error
}{
	"berthd":         {table(&Config{}), WriteReference},
	"berth-operator": {operatorTable(&Operator{}), WriteOperatorReference},
}

func TestSettingsAreWellFormed(t *testing.T) {
	for program, tt := range tables {
		seen := map[string]string{}
		for _, s := range tt.settings {
			if s.Doc == "" || !strings.HasSuffix(s.Doc, ".") || s.Group == "" {
				t.Errorf("%s --%s: documentation = %q, group = %q, want a sentence and a group", program, s.Flag, s.Doc, s.Group)
			}
			for _, name := range append([]string{"--" + s.Flag}, s.Env...) {
				if other, dup := seen[name]; dup {
					t.Errorf("%s: %s belongs to --%s and --%s", program, name, other, s.Flag)
				}
				seen[name] = s.Flag
			}
		}
	}
}

func TestReferenceListsEverySetting(t *testing.T) {
	for program, tt := range tables {
		var b strings.Builder
		if err := tt.write(&b); err != nil {
			t.Fatal(err)
		}
		for _, s := range tt.settings {
			if !strings.Contains(b.String(), "`--"+s.Flag+"`") || !strings.Contains(b.String(), "`"+s.Env[0]+"`") {
				t.Errorf("reference of %s lacks --%s", program, s.Flag)
			}
		}
	}
}

func TestPolicy(t *testing.T) {
	aws, cilium := ipam.DefaultAWS(), ipam.DefaultCilium()
	aws.Families, cilium.Families = ipfamily.OnlyIPv4, ipfamily.OnlyIPv4
	with := func(p ipam.Policy, change func(*ipam.Policy)) ipam.Policy { change(&p); return p }
	for name, tt := range map[string]struct {
		args []string
		want ipam.Policy
	}{
		"nothing set":      {nil, aws},
		"targets":          {[]string{"--warm-eni-target=0", "--warm-ip-target=5", "--max-eni=2"}, with(aws, func(p *ipam.Policy) { p.WarmENI, p.WarmIP, p.MaxENI = 0, 5, 2 })},
		"prefixes":         {[]string{"--enable-prefix-delegation", "--max-pods=110"}, with(aws, func(p *ipam.Policy) { p.PrefixDelegation, p.MaxPods = true, 110 })},
		"Cilium":           {[]string{"--min-allocate=10"}, with(cilium, func(p *ipam.Policy) { p.MinAllocate = 10 })},
		"Cilium, all ENIs": {[]string{"--pre-allocate=4", "--first-interface-index=0"}, with(cilium, func(p *ipam.Policy) { p.PreAllocate, p.FirstInterfaceIndex = 4, 0 })},
		"dual":             {[]string{"--ip-families=dual"}, with(aws, func(p *ipam.Policy) { p.Families = ipfamily.Dual })},
		"IPv6, Cilium":     {[]string{"--ip-families=IPv6", "--pre-allocate=4"}, with(cilium, func(p *ipam.Policy) { p.Families, p.PreAllocate = ipfamily.OnlyIPv6, 4 })},
		"AWS, second ENI":  {[]string{"--first-interface-index=1"}, with(aws, func(p *ipam.Policy) { p.FirstInterfaceIndex = 1 })},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := load(t, tt.args, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, c.Policy()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Effective contains the value and the source of every setting, without passwords.
func TestEffectiveSettings(t *testing.T) {
	c, err := load(t, []string{"--warm-ip-target=3"}, []string{"BERTH_EC2_ENDPOINT=https://me:planted@ec2.local", "WARM_ENI_TARGET=2"})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Effective) != len(table(&Config{})) {
		t.Errorf("%d settings are listed, want all", len(c.Effective))
	}
	got := map[string]introspect.Setting{}
	for _, s := range c.Effective {
		got[s.Name] = s
	}
	for _, want := range []introspect.Setting{
		{Name: "warm-ip-target", Value: "3", From: "--warm-ip-target"}, {Name: "warm-eni-target", Value: "2", From: "environment variable WARM_ENI_TARGET"},
		{Name: "ec2-endpoint", Value: "https://REDACTED@ec2.local", From: "environment variable BERTH_EC2_ENDPOINT"},
		{Name: "warm-wait", Value: "45s", From: "default of --warm-wait"},
	} {
		if got[want.Name] != want {
			t.Errorf("effective setting = %+v, want %+v", got[want.Name], want)
		}
	}
}
