// Package ec2subnets reads subnets from EC2 for commands, with the user's own credentials and region: those of the AWS
// command line tools.
package ec2subnets

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/berthnet/berth/internal/ec2/cloud"
	"github.com/berthnet/berth/internal/ec2/cloud/aws"
	"github.com/berthnet/berth/internal/ec2/cloud/pace"
)

// Read calls DescribeSubnets. An empty region is the one of the environment, the shared configuration or the instance.
func Read(ctx context.Context, region string, f cloud.SubnetFilter) ([]cloud.Subnet, error) {
	client, err := aws.New(ctx, aws.Options{Region: region, UserAgent: "berthctl", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	list, err := pace.Cloud(client, pace.Options{}).Subnets(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("read subnets from EC2 (ec2:DescribeSubnets): %w", err)
	}
	var missing []string
	for _, id := range f.IDs {
		if !slices.ContainsFunc(list, func(s cloud.Subnet) bool { return s.ID == id }) {
			missing = append(missing, id)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("EC2 has no subnet %s in this account and region: set --region or AWS_PROFILE", strings.Join(missing, ", "))
	}
	return list, nil
}
