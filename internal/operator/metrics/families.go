package metrics

import (
	"io"
	"strings"

	"github.com/berthnet/berth/internal/metric"
)

// The metrics that Cilium documents for its AWS ENI allocator, under Berth's name, and more: how
// often everything is listed, free addresses of subnets, how long pods wait for
// addresses, and the use of address pools.
var (
	famIPs       = metric.New("berth_operator_eni_ips", "gauge", "Addresses of all nodes by type: used by pods (cooling ones included), available to pods (used ones included), or needed beyond those.", "type")
	famAssigns   = metric.New("berth_operator_eni_allocation_ops", "counter", "Allocations of addresses or prefixes on ENIs that were there, by subnet.", "subnet_id")
	famCreations = metric.New("berth_operator_eni_interface_creation_ops", "counter", "Creations of ENIs by subnet and status: success, or the class of the error.", "subnet_id", "status")
	famENIs      = metric.New("berth_operator_eni_available", "gauge", "ENIs with an address that no pod uses.")
	famNodes     = metric.New("berth_operator_eni_nodes", "gauge", "Nodes by category: total, in-deficit (they need addresses), or at-capacity (they can have no more).", "category")
	famCalls     = metric.New("berth_operator_aws_api_duration_seconds", "histogram", "Time that calls to EC2 took, without the client's limiter, by operation and response code: EC2's error code, or OK.", "operation", "response_code")
	famLimiter   = metric.New("berth_operator_ec2_rate_limit_duration_seconds", "histogram", "Time that the client's limiter held calls to EC2 back, by operation.", "operation")
	famResyncs   = metric.New("berth_operator_eni_resync_total", "counter", "Full listings of what EC2 holds for all nodes, failed ones included.")
	famSubnets   = metric.New("berth_operator_subnet_free_addresses", "gauge", "Free addresses of the subnets that nodes may use, less what is being asked for right now.", "subnet_id", "zone")
	famDemand    = metric.New("berth_operator_demand_to_address_seconds", "histogram", "Time from when more pods waited on a node than it had free addresses until it had enough.")

	famPoolBlocks    = metric.New("berth_operator_pool_blocks", "gauge", "Blocks of a pool by state: max (all there are), allocated (nodes have them) or free.", "pool", "state")
	famPoolAddresses = metric.New("berth_operator_pool_addresses", "gauge", "Addresses of one family of a pool by state, those of allocated blocks as allocated.", "pool", "state")
	famPoolWaiting   = metric.New("berth_operator_pool_waiting_requests", "gauge", "Requests of nodes for which a pool has no block.", "pool")
	famBlockServed   = metric.New("berth_operator_block_request_seconds", "histogram", "Time from a node's request for a block to its answer with one.")
	famBlockRefused  = metric.New("berth_operator_block_requests_refused_total", "counter", "Requests for blocks that were refused for what their node has or asks for already, by reason: NoPods, NodeQuota or TooManyRequests.", "reason")

	families = []metric.Family{
		famPoolBlocks, famPoolAddresses, famPoolWaiting, famBlockServed, famBlockRefused,
		famIPs, famAssigns, famCreations, famENIs, famNodes, famCalls, famLimiter, famResyncs, famSubnets, famDemand,
	}
)

// WriteReference writes the metrics as the page docs/reference/operator-metrics.md.
func WriteReference(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`# Metrics of berth-operator

<!-- Generated from internal/operator/metrics by "make generate". -->

Served at /metrics on --metrics-address in the Prometheus text format, besides
the Go runtime's and the process's own, and those of controller-runtime
(controller_runtime_*, workqueue_*, rest_client_*, leader_election_*). Durations
are in seconds. Only the operator that leads knows of nodes and subnets: one
that stands by has 0 or nothing there.

`)
	metric.WriteTable(&b, families)
	_, err := io.WriteString(w, b.String())
	return err
}
