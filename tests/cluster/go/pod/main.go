// Package main is what the cluster's own pods run: a sandbox that waits, a server and a client to check networks with.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const usage = `usage:
  pod pause            waits to be told to end, and buries orphans meanwhile
  pod serve ADDRESS    answers every HTTP request with this host's name
  pod get URL          prints what a server answers
  pod resolve NAME     prints a name's addresses`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) == 1 && arguments[0] == "pause":
		return pause()
	case len(arguments) == 2 && arguments[0] == "serve":
		return serve(arguments[1])
	case len(arguments) == 2 && arguments[0] == "get":
		return get(arguments[1])
	case len(arguments) == 2 && arguments[0] == "resolve":
		return resolve(arguments[1])
	}
	return fmt.Errorf("%s", usage)
}

// pause is the first process of a pod: the others' namespaces live as long as it does.
func pause() error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return nil
		}
		for {
			if child, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); child <= 0 || err != nil {
				break
			}
		}
	}
	return nil
}

func serve(address string) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	server := &http.Server{
		Addr:              address,
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, host)
		}),
	}
	context.AfterFunc(stop, func() { _ = server.Shutdown(context.Background()) })
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func get(url string) error {
	client := http.Client{Timeout: 3 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(os.Stdout, response.Body); err != nil {
		return err
	}
	if response.StatusCode >= 400 {
		return fmt.Errorf("%s answered %s", url, response.Status)
	}
	return nil
}

func resolve(name string) error {
	addresses, err := net.LookupHost(name)
	if err != nil {
		return err
	}
	fmt.Println(strings.Join(addresses, " "))
	return nil
}
