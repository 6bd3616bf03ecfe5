package amqp_test

import (
	"math"
	"testing"
	"time"

	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/watermill-outbox/outbox/forwarder/amqp"
)

// foreignHeaders are of all types that AMQP has.
func foreignHeaders() amqp091.Table {
	moment := time.Date(2024, 2, 29, 13, 14, 15, 0, time.FixedZone("east", 3600))
	return amqp091.Table{
		"text": "é", "empty": "", "bytes": []byte("raw"), "void": nil, "true": true, "time": moment,
		"int8": int8(-8), "uint8": byte(8), "int16": int16(-16), "uint16": uint16(16), "int32": int32(-32), "uint32": uint32(32), "int64": int64(math.MinInt64),
		"float32": float32(0.1), "float64": 1e100, "infinite": math.Inf(-1), "no number": math.NaN(), "decimal": amqp091.Decimal{Scale: 3, Value: -1234},
		"list":  []any{int32(1), "<b>", []byte("c"), nil, moment, []any{}, math.Inf(1)},
		"table": amqp091.Table{"b": amqp091.Table{"c": float32(1)}, "a": amqp091.Decimal{Value: 7}},

		"x-death":             []any{amqp091.Table{"count": int64(2), "queue": "orders", "reason": "rejected", "time": moment, "routing-keys": []any{"orders"}}},
		"x-first-death-queue": "orders", "x-last-death-reason": "rejected",
		"x-delivery-count": int64(3), "x-acquired-count": int64(4), "x-stream-offset": int64(5), "CC": []any{"copy"},
	}
}

func TestMarshalerReadsHeadersOfAnyType(t *testing.T) {
	t.Parallel()
	headers := foreignHeaders()
	headers["_watermill_message_uuid"] = "event-1"
	msg, err := amqp.Marshaler{}.Unmarshal(amqp091.Delivery{Headers: headers, Body: []byte{0, 0xff}, MessageId: "another"})
	require.NoError(t, err)
	require.Equal(t, "event-1", msg.UUID)
	_, err = wmamqp.DefaultMarshaler{}.Unmarshal(amqp091.Delivery{Headers: headers})
	require.Error(t, err, "else nobody needs ours")
	require.Equal(t, message.Payload{0, 0xff}, msg.Payload)
	require.Equal(t, message.Metadata{
		"text": "é", "empty": "", "bytes": "raw", "void": "null", "true": "true", "time": "2024-02-29T12:14:15Z",
		"int8": "-8", "uint8": "8", "int16": "-16", "uint16": "16", "int32": "-32", "uint32": "32", "int64": "-9223372036854775808",
		"float32": "0.1", "float64": "1e+100", "infinite": "-Inf", "no number": "NaN", "decimal": "-1.234",
		"list":  `[1,"<b>","c",null,"2024-02-29T12:14:15Z",[],"+Inf"]`,
		"table": `{"a":7,"b":{"c":1}}`,

		"_rabbitmq_x-death":             `[{"count":2,"queue":"orders","reason":"rejected","routing-keys":["orders"],"time":"2024-02-29T12:14:15Z"}]`,
		"_rabbitmq_x-first-death-queue": "orders", "_rabbitmq_x-last-death-reason": "rejected",
		"_rabbitmq_x-delivery-count": "3", "_rabbitmq_x-acquired-count": "4", "_rabbitmq_x-stream-offset": "5", "_rabbitmq_CC": `["copy"]`,
	}, msg.Metadata)
}

func TestMarshalerFindsTheEventID(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		marshaler amqp.Marshaler
		delivery  amqp091.Delivery
		uuid      string
		metadata  message.Metadata
	}{
		"header":         {delivery: amqp091.Delivery{MessageId: "2", Headers: amqp091.Table{"_watermill_message_uuid": "1"}}, uuid: "1", metadata: message.Metadata{}},
		"bytes":          {delivery: amqp091.Delivery{MessageId: "2", Headers: amqp091.Table{"_watermill_message_uuid": []byte("1")}}, uuid: "1", metadata: message.Metadata{}},
		"number":         {delivery: amqp091.Delivery{Headers: amqp091.Table{"_watermill_message_uuid": int64(1)}}, uuid: "1", metadata: message.Metadata{}},
		"message-id":     {delivery: amqp091.Delivery{MessageId: "2"}, uuid: "2", metadata: message.Metadata{}},
		"nothing at all": {metadata: message.Metadata{}},
		"a key of its own": {
			marshaler: amqp.Marshaler{DefaultMarshaler: wmamqp.DefaultMarshaler{MessageUUIDHeaderKey: "id"}},
			delivery:  amqp091.Delivery{Headers: amqp091.Table{"id": "1", "_watermill_message_uuid": "3"}},
			uuid:      "1", metadata: message.Metadata{"_watermill_message_uuid": "3"},
		},
	} {
		msg, err := test.marshaler.Unmarshal(test.delivery)
		require.NoError(t, err, name)
		require.Equal(t, test.uuid, msg.UUID, name)
		require.Equal(t, test.metadata, msg.Metadata, name)
	}
}

// What a delivery says now stands over what an earlier one said.
func TestMarshalerOverwritesNotesOfAnEarlierDelivery(t *testing.T) {
	t.Parallel()
	msg, err := amqp.Marshaler{}.Unmarshal(amqp091.Delivery{Headers: amqp091.Table{"_rabbitmq_x-delivery-count": "9", "x-delivery-count": int64(0)}})
	require.NoError(t, err)
	require.Equal(t, message.Metadata{"_rabbitmq_x-delivery-count": "0"}, msg.Metadata)
}

// The marshaler changes nothing of what is sent, nor of what watermill-amqp's own can read.
func TestMarshalerIsCompatibleWithWatermills(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("1", []byte{0, 0xff})
	msg.Metadata = message.Metadata{"type": "order.created", "empty": "", "text": "é\n\\"}
	settings := wmamqp.DefaultMarshaler{MessageUUIDHeaderKey: "id", PostprocessPublishing: func(p amqp091.Publishing) amqp091.Publishing {
		p.ContentType = "application/json"
		return p
	}}
	ours, err := amqp.Marshaler{DefaultMarshaler: settings}.Marshal(msg)
	require.NoError(t, err)
	theirs, err := settings.Marshal(msg)
	require.NoError(t, err)
	require.Equal(t, theirs, ours)

	delivery := amqp091.Delivery{Headers: ours.Headers, Body: ours.Body}
	got, err := amqp.Marshaler{DefaultMarshaler: settings}.Unmarshal(delivery)
	require.NoError(t, err)
	want, err := settings.Unmarshal(delivery)
	require.NoError(t, err)
	require.Equal(t, want.UUID, got.UUID)
	require.Equal(t, want.Metadata, got.Metadata)
	require.Equal(t, want.Payload, got.Payload)
}
