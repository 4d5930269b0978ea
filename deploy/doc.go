// Package deploy is what Berth is installed with: its Helm chart (chart), the
// IAM policies for it (iam) and the network configuration for those who install by
// hand (cni). Its functions render the chart as `helm install` does, so that tests
// and the lab install what users do. It links Helm's engine: the programs that are
// shipped do not import it.
package deploy

//go:generate go run ./generate
