// Command limitsgen maintains the table of package limits: it validates and sorts the rows and, with -refresh,
// takes the numbers from DescribeInstanceTypes, using the AWS credentials in the environment. Types that the
// region does not offer keep their rows.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/berthnet/berth/internal/ec2/cloud/limits"
)

func main() {
	out := flag.String("table", "limits.tsv", "`file` to rewrite")
	refresh := flag.Bool("refresh", false, "fetch the numbers from EC2")
	region := flag.String("region", "", "`region` to ask; from the environment when empty")
	flag.Parse()
	if err := run(context.Background(), *out, *refresh, *region); err != nil {
		fmt.Fprintln(os.Stderr, "limitsgen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path string, refresh bool, region string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	rows, err := parse(old)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if refresh {
		cfg, err := config.LoadDefaultConfig(ctx, config.WithRegion(region))
		if err != nil {
			return err
		}
		if err := ask(ctx, ec2.NewFromConfig(cfg), rows); err != nil {
			return err
		}
	}
	if fresh := render(rows); !bytes.Equal(fresh, old) {
		return os.WriteFile(path, fresh, 0o644)
	}
	return nil
}

func parse(table []byte) (map[string]limits.Entry, error) {
	rows := map[string]limits.Entry{}
	for line := range strings.Lines(string(table)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		e, err := limits.ParseRow(line)
		if err != nil {
			return nil, err
		}
		rows[e.Type] = e
	}
	return rows, nil
}

// ask replaces the rows of the types that EC2 describes.
func ask(ctx context.Context, api ec2.DescribeInstanceTypesAPIClient, rows map[string]limits.Entry) error {
	for p := ec2.NewDescribeInstanceTypesPaginator(api, &ec2.DescribeInstanceTypesInput{}); p.HasMorePages(); {
		page, err := p.NextPage(ctx)
		if err != nil {
			return fmt.Errorf("describe instance types: %w", err)
		}
		for _, t := range page.InstanceTypes {
			if e, ok := entry(t); ok {
				rows[e.Type] = e
			}
		}
	}
	return nil
}

// entry returns the row of a type; false for a type without network information. MaxENIs is the limit of the default
// network card, the only one that Berth uses.
func entry(t types.InstanceTypeInfo) (limits.Entry, bool) {
	n := t.NetworkInfo
	if n == nil || n.MaximumNetworkInterfaces == nil || n.Ipv4AddressesPerInterface == nil {
		return limits.Entry{}, false
	}
	e := limits.Entry{
		Type:         string(t.InstanceType),
		Limits:       limits.Limits{MaxENIs: int(*n.MaximumNetworkInterfaces), IPv4PerENI: int(*n.Ipv4AddressesPerInterface)},
		Hypervisor:   string(t.Hypervisor),
		NetworkCards: max(1, len(n.NetworkCards)),
	}
	if sdk.ToBool(n.Ipv6Supported) {
		e.IPv6PerENI = int(sdk.ToInt32(n.Ipv6AddressesPerInterface))
	}
	if sdk.ToBool(t.BareMetal) {
		e.Hypervisor = limits.BareMetal
	}
	for _, c := range n.NetworkCards {
		if sdk.ToInt32(c.NetworkCardIndex) == sdk.ToInt32(n.DefaultNetworkCardIndex) && c.MaximumNetworkInterfaces != nil {
			e.MaxENIs = int(*c.MaximumNetworkInterfaces)
		}
	}
	return e, true
}

const header = `# Instance type limits, as DescribeInstanceTypes gives them (networkInfo).
# Kept by internal/ec2/cloud/aws/limitsgen; to refresh: go run ./internal/ec2/cloud/aws/limitsgen -refresh -table internal/ec2/cloud/limits/limits.tsv
# type	ENIs	IPv4/ENI	IPv6/ENI	hypervisor	cards
`

func render(rows map[string]limits.Entry) []byte {
	var b bytes.Buffer
	b.WriteString(header)
	entries := make([]limits.Entry, 0, len(rows))
	for _, e := range rows {
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(x, y limits.Entry) int { return strings.Compare(x.Type, y.Type) })
	for _, e := range entries {
		b.WriteString(e.Row() + "\n")
	}
	return b.Bytes()
}
