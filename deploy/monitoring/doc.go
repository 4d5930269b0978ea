// Package monitoring tests the alerts, recording rules and dashboard of the chart
// (deploy/chart/files/monitoring): each alert fires in its scenarios only, all metrics and labels
// exist in the programs, and each alert has a runbook in docs/alerts.
package monitoring
