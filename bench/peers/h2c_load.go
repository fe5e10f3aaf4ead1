// Calls in the shape of gRPC over HTTP/2 with prior knowledge, faster than grpcio makes and answers them: a client and an app.
//
// Usage: h2c_load app LISTEN                       answers each message at once, and ends with trailers
//        h2c_load calls ADDRESS AT_ONCE SECONDS    unary calls
//        h2c_load messages ADDRESS AT_ONCE SECONDS messages of one stream in both directions
//
// The clients print how many a second, and the milliseconds of the median and of the 99th percentile.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

// 100 bytes in the frame of a gRPC message.
const messageBytes = 105

func main() {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	if os.Args[1] == "app" {
		server := &http.Server{Addr: os.Args[2], Handler: http.HandlerFunc(answer), Protocols: protocols}
		log.Fatal(server.ListenAndServe())
	}
	atOnce, _ := strconv.Atoi(os.Args[3])
	seconds, _ := strconv.ParseFloat(os.Args[4], 64)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	if os.Args[1] == "messages" {
		messages(client, os.Args[2], atOnce, seconds)
		return
	}
	until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	took := make([][]float64, atOnce)
	var group sync.WaitGroup
	for index := range atOnce {
		group.Go(func() {
			for began := time.Now(); began.Before(until); began = time.Now() {
				call(client, os.Args[2])
				took[index] = append(took[index], float64(time.Since(began).Microseconds())/1000)
			}
		})
	}
	group.Wait()
	var all []float64
	for _, one := range took {
		all = append(all, one...)
	}
	report(all, seconds)
}

func report(all []float64, seconds float64) {
	sort.Float64s(all)
	fmt.Println(float64(len(all))/seconds, all[len(all)/2], all[len(all)*99/100])
}

func answer(writer http.ResponseWriter, request *http.Request) {
	head := writer.Header()
	head.Set("Content-Type", "application/grpc")
	head.Set("Trailer", "Grpc-Status")
	if strings.HasSuffix(request.URL.Path, "/Chat") {
		writer.WriteHeader(http.StatusOK)
		writer.(http.Flusher).Flush()
		piece := make([]byte, 16384)
		for {
			count, err := request.Body.Read(piece)
			writer.Write(piece[:count])
			writer.(http.Flusher).Flush()
			if err != nil {
				break
			}
		}
	} else {
		message, err := io.ReadAll(request.Body)
		if err != nil {
			return
		}
		writer.WriteHeader(http.StatusOK)
		writer.Write(message)
		writer.(http.Flusher).Flush()
	}
	head.Set("Grpc-Status", "0")
}

func send(client *http.Client, address string, method string, body io.Reader) *http.Response {
	request, err := http.NewRequest("POST", "http://"+address+"/serving.samples.Echo/"+method, body)
	if err != nil {
		log.Fatal(err)
	}
	request.ContentLength = -1
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("Te", "trailers")
	response, err := client.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	return response
}

func messages(client *http.Client, address string, atOnce int, seconds float64) {
	reader, writer := io.Pipe()
	response := send(client, address, "Chat", reader)
	// When each message on its way was sent, in order.
	sent := make(chan time.Time, atOnce)
	until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	go func() {
		message := make([]byte, messageBytes)
		for began := time.Now(); began.Before(until); began = time.Now() {
			sent <- began
			writer.Write(message)
		}
		writer.Close()
	}()
	var took []float64
	piece := make([]byte, 16384)
	bytesLeft := messageBytes
	for {
		count, err := response.Body.Read(piece)
		for ; count >= bytesLeft; bytesLeft = messageBytes {
			count -= bytesLeft
			took = append(took, float64(time.Since(<-sent).Microseconds())/1000)
		}
		bytesLeft -= count
		if err == io.EOF {
			break
		} else if err != nil {
			log.Fatal(err)
		}
	}
	if len(sent) != 0 || response.Trailer.Get("Grpc-Status") != "0" {
		log.Fatal("messages are missing: ", len(sent), response.Trailer)
	}
	report(took, seconds)
}

func call(client *http.Client, address string) {
	message := make([]byte, messageBytes)
	response := send(client, address, "Say", bytes.NewReader(message))
	body, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil || len(body) != len(message) || response.Trailer.Get("Grpc-Status") != "0" {
		log.Fatal("a call failed: ", err, len(body), response.Trailer)
	}
}
