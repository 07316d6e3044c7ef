"What several tests share: ."



