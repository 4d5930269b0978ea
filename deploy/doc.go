// Package deploy contains the files for the installation of Berth: its Helm chart (chart), the IAM policies (iam), and
// the network configuration for a manual installation (cni). Its functions render the chart like `helm install`, so
// that tests and the lab install the same objects as users. It links Helm's engine, so the released programs do not
// import it.
package deploy

//go:generate go run ./generate
