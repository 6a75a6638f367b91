// Package main is CoreDNS with the plugins that a cluster's own names need.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
	"github.com/coredns/coredns/coremain"
)

func main() {
	// Outermost first; what is not named here is not there.
	dnsserver.Directives = []string{"health", "ready", "errors", "cache", "kubernetes", "template"}
	coremain.Run()
}
