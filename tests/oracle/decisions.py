"""The decisions whose logits the oracle computed: plausible, of many lengths, scripts and numbers of options."""

# ruff: noqa: RUF001 - characters that look like others are what some of these decisions are about
from __future__ import annotations

from typing import Any


def _decision(name: str, state: Any, question: str, *options: str, layout: str = "state-first") -> dict[str, Any]:
    return {
        "id": name,
        "state": state,
        "question": question,
        "options": [{"id": f"option-{number}", "description": text} for number, text in enumerate(options, 1)],
        "layout": layout,
    }


def _criteria_first(name: str, state: Any, question: str, *options: str) -> dict[str, Any]:
    return _decision(name, state, question, *options, layout="criteria-first")


_YES_NO = ("The answer to the question is yes.", "The answer to the question is no.")
_MOODS = ("The customer is content.", "The customer is annoyed.", "The customer is about to leave.")
_QUEUES = (
    "Account access and authentication support.",
    "Billing and payment support.",
    "Sales and product evaluation.",
)
_URGENCY = tuple(f"Urgency {level} of 10, where 10 means that people are in danger." for level in range(1, 11))

_TURNS = (
    ("user", "My order 4711-{n} still shows 'in transit'. It was promised for last Tuesday."),
    ("agent", "I am sorry to hear that. I can see parcel {n} left our warehouse on the 3rd; let me ask the carrier."),
    ("user", "Third time I hear this. Invoice R-{n}/2026 was charged at once, of course: €{n}.90."),
    ("agent", "The carrier reports a sorting error in depot {n}. Delivery is now planned within two working days."),
    ("user", "Fine, but if box {n} is damaged again I want my money back, not another voucher."),
)
_PRODUCTS = ("kettle", "toaster", "lamp", "chair", "monitor", "keyboard", "hose", "jacket")
_FAULTS = ("broken", "missing", "wrong", "noisy", "late")
_PLACES = ("shop", "website", "phone", "depot", "partner", "app", "fair")


def _transcript(turns: int) -> list[dict[str, str]]:
    return [
        {"role": role, "text": text.format(n=10 + 7 * number)}
        for number, (role, text) in enumerate(_TURNS[index % len(_TURNS)] for index in range(turns))
    ]


def _categories(count: int) -> list[str]:
    return [f"{_PRODUCTS[n % 8]}, {_PLACES[n % 7]}, {_FAULTS[n % 5]}" for n in range(count)]


DECISIONS: list[dict[str, Any]] = [
    # The published example and its neighbours: English, short.
    _decision(
        "support-route",
        "Customer asks to reset a forgotten password and says the reset email never arrived.",
        "Which queue should handle this request?",
        *_QUEUES,
    ),
    _criteria_first(
        "support-route-criteria-first",
        "Customer asks to reset a forgotten password and says the reset email never arrived.",
        "Which queue should handle this request?",
        *_QUEUES,
    ),
    _decision("shortest", "?", "?", "a", "b"),
    _decision("is-spam", "WIN a FREE cruise!!! Reply YES to 55-123 now.", "Is this message spam?", *_YES_NO),
    _criteria_first("is-it-raining", "Drops run down the window pane.", "Is it raining?", *_YES_NO),
    _decision(
        "capital-of-france",
        "A pupil writes: 'The capital of France is Lyon.'",
        "How should the teacher mark the answer?",
        "Right.",
        "Wrong: the capital is Paris.",
        "Wrong: the capital is Marseille.",
        "It cannot be decided.",
    ),
    _decision("urgency", "Smoke comes out of the server room on the second floor.", "How urgent is it?", *_URGENCY),
    _criteria_first("urgency-low", "The coffee machine is out of oat milk.", "How urgent is it?", *_URGENCY),
    # States that are JSON objects and arrays, nested, with numbers, null and booleans.
    _decision(
        "refund",
        {"order": {"id": 981, "total": 129.95, "currency": "EUR", "paid": True}, "returned": None, "days": 41},
        "May the order be refunded under a 30 day policy?",
        *_YES_NO,
        "A person has to look at it.",
    ),
    _criteria_first(
        "loan",
        {"income": 2_450, "debts": [1_200.5, 88, 0.1], "employed": True, "guarantor": None, "history": []},
        "What does the first check say?",
        "Accept.",
        "Decline.",
        "Ask for a guarantor.",
        "Ask for documents.",
        "Escalate.",
    ),
    _decision("empty-fields", {"": "", "a": {"": []}, "b": [[], {}, ""]}, "Does the record hold any text?", *_YES_NO),
    _decision("numbers", [0, -1, 1e-07, 123456789012345678, 3.5, 10**20], "Is the list sorted?", *_YES_NO),
    _decision(
        "log-lines", ["12:00:01 GET /ping 200", "12:00:02 POST /invocations 503"] * 3, "Is it healthy?", *_YES_NO
    ),
    # Scripts.
    _decision(
        "german", "Die Straße ist überflutet, Öl läuft in den Fluß.", "Wer muss kommen?", "Feuerwehr", "Müllabfuhr"
    ),
    _decision(
        "french", "Où est passé l'élève ? Il a dû s'arrêter au café.", "L'élève est-il en classe ?", "Oui.", "Non."
    ),
    _decision("vietnamese", "Tôi muốn hủy đơn hàng vì giao quá trễ.", "Khách muốn gì?", "Hủy đơn", "Đổi hàng", "Khen"),
    _decision("russian", "Заказ пришёл вовремя, спасибо большое!", "Каково настроение клиента?", *_MOODS),
    _decision("greek", "Το πακέτο δεν έφτασε ποτέ και κανείς δεν απαντά.", "Ποια είναι η διάθεση;", *_MOODS),
    _decision(
        "chinese",
        "客户说包裹昨天就该到了，但是到现在还没有收到。",
        "客户想要什么？",
        "退款",
        "查询物流",
        "投诉客服",
        "取消订单",
    ),
    _decision(
        "japanese",
        "パスワードを忘れました。リセットのメールが届きません。",
        "どの窓口ですか？",
        "アカウント",
        "請求",
        "営業",
    ),
    _criteria_first("korean", "배송이 너무 늦어서 환불을 원합니다.", "고객이 원하는 것은?", "환불", "교환", "칭찬"),
    _decision("hindi", "मेरा पार्सल अभी तक नहीं आया है।", "ग्राहक का मूड?", *_MOODS),
    _decision("thai", "สินค้าเสียหายตอนมาถึง ต้องการคืนเงิน", "ลูกค้าต้องการอะไร", "คืนเงิน", "เปลี่ยนสินค้า"),
    _decision(
        "arabic",
        "لم تصل رسالة إعادة تعيين كلمة المرور.",
        "أي قسم يجب أن يتولى الطلب؟",
        "الحسابات",
        "الفواتير",
        "المبيعات",
    ),
    _decision("hebrew-and-english", 'הלקוח כתב: "please cancel הזמנה 4711 today"', "מה הלקוח רוצה?", "לבטל", "להזמין"),
    # Emoji, combining marks, characters that tokenizers and templates trip over.
    _decision("emoji", "👩‍👩‍👧‍👦 loved it 🎉🎉 but 🚚 was 🐌 … 🇨🇭👍🏽", "What is the mood?", *_MOODS),
    _criteria_first(
        "emoji-options", "The parcel came a day early.", "Which sticker fits?", "😀", "😡", "🤷🏽‍♀️", "🚚💨"
    ),
    _decision(
        "combining-marks", "Cafe\u0301 vs. Café, n\u0303 vs. ñ, Z\u0351\u036b\u0343a\u0310lgo", "Same?", *_YES_NO
    ),
    _decision(
        "odd-spaces",
        "a\u00a0b\u2009c\u3000d\u200be\ufefff\u2028g\u2029h",
        "How many letters are there?",
        "Six.",
        "Eight.",
    ),
    _decision("bidi-marks", "safe\u202etxt.exe\u202c name", "Is the file name honest?", *_YES_NO),
    _decision("blank-run", "  leading,\t\ttabs,\r\n\r\n\r\nlines   and trailing   ", "Is it tidy?", *_YES_NO),
    _decision("quotes-and-backslashes", 'C:\\temp\\"new" \\u0041 \\n {"a": "\\"}', "Is it valid JSON?", *_YES_NO),
    _decision(
        "code", "def f(x):\n    return x if x > 0 else -x\n", "What does f do?", "Absolute value.", "Sign.", "Negation."
    ),
    _decision(
        "mathematics", "∀ε>0 ∃δ>0: |x−x₀|<δ ⇒ |f(x)−f(x₀)|<ε", "What is defined?", "Continuity.", "A limit.", "A sum."
    ),
    # Many options: all single letters, one more than the letters, and up to the most that the wire allows.
    _decision("letters", "A toaster from the fair does not switch on.", "Which case is it?", *_categories(26)),
    _criteria_first("letters-and-one", "A kettle from the app arrived broken.", "Which case is it?", *_categories(27)),
    _decision(
        "most-options", {"channel": "fair", "product": "lamp"}, "Which bin takes it?", *(f"bin {n}" for n in range(255))
    ),
    # Long evidence.
    _decision("transcript", _transcript(12), "What is the customer's state at the end?", *_MOODS),
    _criteria_first("transcript-criteria-first", _transcript(12), "What is the customer's state at the end?", *_MOODS),
    _decision("long-transcript", _transcript(40), "What is the customer's state at the end?", *_MOODS),
]
