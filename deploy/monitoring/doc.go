// Package monitoring tests the alerts, recording rules and dashboard that the
// chart ships (deploy/chart/files/monitoring): that each alert fires when it
// should and not beside it, that they name only metrics and labels that the
// programs have, and that each alert has a runbook in docs/troubleshoot.md.
package monitoring
