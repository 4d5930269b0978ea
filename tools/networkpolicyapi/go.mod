module github.com/berthnet/berth/tools/networkpolicyapi

go 1.26.6

tool sigs.k8s.io/network-policy-api/conformance

require sigs.k8s.io/network-policy-api v0.3.0 // indirect
