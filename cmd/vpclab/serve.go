package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berthnet/berth/lab/cloud/endpoints"
	"github.com/berthnet/berth/lab/cloud/spec"
	"github.com/berthnet/berth/lab/cloud/vpc"
)

func newServe() *cobra.Command {
	var specFile, ec2Addr, imdsAddr, imdsInstance string
	var calls bool
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve the EC2 API and the instance metadata service of a virtual VPC",
		Long: `Serve the EC2 API and the instance metadata service of a virtual VPC, for any
AWS SDK or the aws command. No packets flow and no root is needed. It ends with
SIGINT or SIGTERM.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := spec.Default()
			if specFile != "" {
				var err error
				if s, err = spec.Load(specFile); err != nil {
					return err
				}
			}
			cloud, err := endpoints.ServeOn(ec2Addr, s)
			if err != nil {
				return err
			}
			defer cloud.Close()
			imdsURL := ""
			if imdsInstance == "" && len(s.Instances) > 0 {
				imdsInstance = s.Instances[0].Name
			}
			if imdsInstance != "" {
				if imdsURL, err = cloud.ServeIMDS(imdsAddr, imdsInstance); err != nil {
					return err
				}
			}
			if err := describe(cmd.OutOrStdout(), cloud, imdsURL, imdsInstance); err != nil {
				return err
			}
			if !calls {
				<-cmd.Context().Done()
				return nil
			}
			show, err := callPrinter(cmd.OutOrStdout(), "text", "*")
			if err != nil {
				return err
			}
			ask := func(_ context.Context, after uint64) ([]vpc.CallRecord, error) {
				return cloud.API.CallsAfter(after), nil
			}
			return showCalls(cmd.Context(), ask, show, true)
		},
	}
	f := c.Flags()
	f.StringVar(&specFile, "spec", "", "YAML `file` that describes the lab (default: one VPC, two subnets, two m5.large)")
	f.StringVar(&ec2Addr, "ec2-addr", "127.0.0.1:9280", "`address` of the EC2 API")
	f.StringVar(&imdsAddr, "imds-addr", "127.0.0.1:9281", "`address` of the instance metadata service")
	f.BoolVar(&calls, "calls", false, "print each EC2 call with its parameters, as vpclab calls does")
	f.StringVar(&imdsInstance, "imds-instance", "", "`instance` (name or ID) whose metadata a caller sees that is none of the instances (default: the first)")
	return c
}

// describe prints the endpoints and how to use them. SDKs read AWS_REGION, and version 1 of the aws command only
// AWS_DEFAULT_REGION.
func describe(w io.Writer, cloud *endpoints.Cloud, imdsURL, imdsInstance string) error {
	key := cloud.Credentials()
	_, err := fmt.Fprintf(w, `EC2 API            %s
Instance metadata  %s (as instance %s)

export AWS_ENDPOINT_URL_EC2=%s
export AWS_REGION=%s
export AWS_DEFAULT_REGION=%s
export AWS_ACCESS_KEY_ID=%s
export AWS_SECRET_ACCESS_KEY=%s
export AWS_EC2_METADATA_SERVICE_ENDPOINT=%s

`, cloud.EC2URL, imdsURL, imdsInstance, cloud.EC2URL, cloud.Region(), cloud.Region(), key.AccessKeyID, key.SecretAccessKey, imdsURL)
	if err != nil {
		return err
	}
	snapshot := cloud.Snapshot()
	for _, s := range snapshot.Subnets {
		line := fmt.Sprintf("%s  %-10s %-18v %s, %d addresses free", s.ID, s.Name, s.CIDR, s.Zone, s.Free)
		if s.IPv6Native() {
			line = fmt.Sprintf("%s  %-10s %-18v %s, IPv6-only", s.ID, s.Name, s.IPv6, s.Zone)
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	for _, i := range snapshot.Instances {
		own := snapshot.InstanceENIs(i.ID)[0].Own() // one at least
		if _, err := fmt.Fprintf(w, "%s  %-10s %-18v %s, %s\n", i.ID, i.Name, own[0], i.Zone, i.Type); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(w, "\nTry: aws ec2 describe-instances --output table")
	return err
}
