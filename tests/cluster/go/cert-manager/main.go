// The controllers of cert-manager that make a Certificate a Secret, by an authority whose key is in the
// cluster. Its own executable is no published module; those of ACME, Vault and Venafi are left out, and its
// webhook, which refuses what is wrong and notes who asked.
package main

import (
	"context"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/cert-manager/cert-manager/pkg/controller"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

// Where its chart looks whether it lives.
const health = ":9403"

// What is worked on at a time by each controller, as cert-manager's own executable has it.
const workers = 5

// Its defaults. Of what its chart tells it only the namespace matters here, which is in this variable too.
func options() controller.ContextOptions {
	return controller.ContextOptions{
		Kubeconfig:         os.Getenv("KUBECONFIG"),
		KubernetesAPIQPS:   20,
		KubernetesAPIBurst: 50,
		IssuerOptions:      controller.IssuerOptions{ClusterResourceNamespace: os.Getenv("POD_NAMESPACE")},
		CertificateOptions: controller.CertificateOptions{
			CopiedAnnotationPrefixes:                 []string{"*", "-kubectl.kubernetes.io/", "-fluxcd.io/", "-argocd.argoproj.io/"},
			CertificateRequestMinimumBackoffDuration: time.Hour,
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour,
		},
	}
}

func run(ctx context.Context) error {
	factory, err := controller.NewContextFactory(ctx, options())
	if err != nil {
		return err
	}
	known := controller.Known()
	ended := make(chan error, len(known)+1)
	go func() {
		ended <- http.ListenAndServe(health, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	}()
	var names []string
	for name, construct := range known {
		one, err := construct(factory)
		if err != nil {
			return err
		}
		names = append(names, name)
		go func() { ended <- one.Run(workers, ctx) }()
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	slices.Sort(names)
	log.Printf("running %q", names)
	err = <-ended
	if ctx.Err() == nil && err == nil {
		err = errors.New("a controller ended by itself")
	}
	return err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}
