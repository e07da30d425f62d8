// SPDX-License-Identifier: Apache-2.0

// ask: an independent varlink client, of the Go library that Debian packages
// (golang-github-varlink-go-dev). It introspects the query socket and calls what it found.
//
//	GO111MODULE=off GOPATH=/usr/share/gocode go run ask.go SOCKET PID ADDRESS
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/varlink/go/varlink"
	"github.com/varlink/go/varlink/idl"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: ask SOCKET PID ADDRESS")
		os.Exit(2)
	}
	pid, err := strconv.Atoi(os.Args[2])
	if err == nil {
		err = ask(os.Args[1], pid, os.Args[3])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "ask:", err)
		os.Exit(1)
	}
}

func ask(socket string, pid int, address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := varlink.NewConnection(ctx, "unix:"+socket)
	if err != nil {
		return err
	}
	defer c.Close()
	name, err := introspect(ctx, c)
	if err != nil {
		return err
	}
	if err = list(ctx, c, name); err != nil {
		return err
	}
	return resolve(ctx, c, name, pid, address)
}

// introspect returns the name of the one interface that is not varlink's own.
func introspect(ctx context.Context, c *varlink.Connection) (string, error) {
	var vendor, product, version, url, name string
	var interfaces []string

	if err := c.GetInfo(ctx, &vendor, &product, &version, &url, &interfaces); err != nil {
		return "", err
	}
	fmt.Println("service", vendor, product, version, strings.Join(interfaces, ","))
	for _, i := range interfaces {
		// The library's parser takes no capitals in the name of an interface: it is asked
		// for by the lower-case one, which means the same to the service.
		text, err := c.GetInterfaceDescription(ctx, strings.ToLower(i))
		if err != nil {
			return "", err
		}
		parsed, err := idl.New(text)
		if err != nil {
			return "", fmt.Errorf("%s: %w", i, err)
		}
		fmt.Println("interface", parsed.Name, len(parsed.Methods), len(parsed.Aliases), len(parsed.Errors))
		if i != "org.varlink.service" {
			name = i
			for _, m := range parsed.Methods {
				fmt.Println("method", m.Name, len(m.In.Fields), len(m.Out.Fields))
			}
		}
	}
	return name, nil
}

func list(ctx context.Context, c *varlink.Connection, name string) error {
	var reply struct {
		Processes []struct {
			Pid      int    `json:"pid"`
			Comm     string `json:"comm"`
			Complete bool   `json:"complete"`
		} `json:"processes"`
	}
	if err := c.Call(ctx, name+".ListProcesses", nil, &reply); err != nil {
		return err
	}
	for _, p := range reply.Processes {
		fmt.Println("process", p.Pid, p.Comm, p.Complete)
	}
	return nil
}

func resolve(ctx context.Context, c *varlink.Connection, name string, pid int, address string) error {
	type parameters struct {
		Pid       int           `json:"pid"`
		Addresses []interface{} `json:"addresses"`
		WaitMs    int           `json:"wait_ms"`
	}
	var reply struct {
		Methods []struct {
			Function string `json:"function"`
		} `json:"methods"`
		Method []*int    `json:"method"`
		Reason []*string `json:"reason"`
		Final  bool      `json:"final"`
	}
	in := parameters{pid, []interface{}{address, 4096}, 10}
	if err := c.Call(ctx, name+".Resolve", in, &reply); err != nil {
		return err
	}
	for i, m := range reply.Method {
		if m != nil {
			fmt.Println("answer", reply.Methods[*m].Function)
		} else {
			fmt.Println("answer", "-", *reply.Reason[i])
		}
	}
	// in pieces, as long as the service says that more follow
	receive, err := c.Send(ctx, name+".ListMethods", map[string]int{"pid": pid}, varlink.More)
	if err != nil {
		return err
	}
	n, pieces := 0, 0
	for more := uint64(varlink.Continues); more&varlink.Continues != 0; pieces++ {
		var part struct {
			Methods []struct{} `json:"methods"`
		}
		if more, err = receive(ctx, &part); err != nil {
			return err
		}
		n += len(part.Methods)
	}
	fmt.Println("methods", n, pieces)
	// errors arrive with their names
	err = c.Call(ctx, name+".ListMethods", map[string]int{"pid": 4194303}, nil)
	var e *varlink.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("no error for a process that is none: %v", err)
	}
	fmt.Println("error", e.Name)
	err = c.Call(ctx, name+".Nonsense", nil, nil)
	var missing *varlink.MethodNotFound
	if !errors.As(err, &missing) {
		return fmt.Errorf("no MethodNotFound: %v", err)
	}
	fmt.Println("missing", missing.Method)
	return nil
}
